"""Folds the bytes that an upstream sent, a stream or a JSON body, into what it answered. Pure.

Works on the raw reply: a client library that re-models replies loses fields that it does not know.
"""

from dataclasses import replace
from typing import Any

from gateway.fold import lenient, sse, stated
from gateway.fold.answer import Reply
from gateway.fold.choice import Choice, Ids, ids

_DONE = b"[DONE]"
_USUAL = frozenset({"id", "object", "created", "model", "choices", "system_fingerprint"})  # of most chunks
_EXCERPT = 500  # characters of an unreadable body that its error quotes


def fold(body: bytes) -> Reply:
    """Folds a whole reply; its first byte shows which of the two forms it has: a stream's is no brace."""
    if body.lstrip()[:1] in (b"{", b"["):
        return _fold_json(body)
    return fold_events(sse.Parser(), [body])


def fold_events(parser: sse.Parser, chunks: list[bytes]) -> Reply:
    """Folds a stream that comes in chunks, cut anywhere."""
    folder = Folder()
    for chunk in chunks:
        for event in parser.feed(chunk):
            folder.event(event)
    for event in parser.close():
        folder.event(event)
    return folder.finish()


class Folder:
    """Takes a reply's objects one after the other."""

    def __init__(self) -> None:
        self._choices: dict[int, Choice] = {}
        self._usage: dict[str, Any] | None = None
        self._error: str | None = None
        self._unreadable: str | None = None  # an event that was no JSON, as long as it is the last
        self._done = False
        self._model: str | None = None
        self._prompt_ids: Ids | None = None
        self._response_ids: dict[int, Ids] = {}
        self._version: tuple[int, int] | None = None

    def event(self, event: sse.Event) -> None:
        if self._unreadable is not None:
            self._error = self._error or self._unreadable
        if event.data.strip() == _DONE:
            self._done = True
            return
        try:
            payload = lenient.loads(event.data)
        except ValueError:
            # The last event of a stream that was cut is no fault of its own: the missing end tells.
            self._unreadable = f"an event is no JSON: {_excerpt(event.data)}"
            return
        if event.name == b"error" and isinstance(payload, dict) and "error" not in payload:
            payload = {"error": payload}
        self.add(payload)

    def add(self, payload: Any) -> None:
        """Takes one chunk, or a whole body."""
        if not isinstance(payload, dict):
            return
        choices = payload.get("choices")
        for position, choice in enumerate(choices if isinstance(choices, list) else ()):
            if isinstance(choice, dict):
                self._choice(choice.get("index"), position).add(choice)
        if isinstance(payload.get("model"), str):
            self._model = payload["model"]
        if not payload.keys() <= _USUAL or payload.get("object") == "error":
            self._add_unusual(payload)

    def _add_unusual(self, payload: dict[str, Any]) -> None:
        """What stands beside the choices of bodies and of few chunks."""
        self._error = self._error or _error_in(payload)
        if isinstance(payload.get("usage"), dict):
            self._usage = payload["usage"]
        self._prompt_ids = ids(payload.get("prompt_token_ids")) or self._prompt_ids
        self._version = stated.of_label(payload.get("metadata")) or self._version
        self._add_extension(payload.get("sglext") or payload)

    def finish(self, whole: bool = False) -> Reply:
        """`whole`: the reply was one JSON body, which has no end marker of its own."""
        adapter = stated.adapter_version((self._model or "").partition(":")[2])  # "<model>:<adapter>"
        answers = tuple(
            choice.finish(
                self._prompt_ids,
                self._response_ids.get(index),
                # What stands outside the choices is about the first one only.
                self._version if index == 0 or len(self._choices) == 1 else None,
            )
            for index, choice in sorted(self._choices.items())
        )
        if adapter is not None:
            answers = tuple(replace(answer, version=adapter) for answer in answers)
        return Reply(answers, self._usage, self._error, self._done or whole, self._model)

    def _choice(self, index: Any, position: int) -> Choice:
        number = index if isinstance(index, int) and index >= 0 else position
        known = self._choices.get(number)
        if known is None:
            known = self._choices[number] = Choice(number)
        return known

    def _add_extension(self, extension: Any) -> None:
        if not isinstance(extension, dict):
            return
        self._prompt_ids = ids(extension.get("input_ids")) or self._prompt_ids
        self._version = stated.of_label(extension) or self._version
        outputs = extension.get("output_ids")
        if isinstance(outputs, list):
            per_choice = outputs if outputs and isinstance(outputs[0], list) else [outputs]
            for index, values in enumerate(per_choice):
                self._response_ids[index] = ids(values) or ()


def _fold_json(body: bytes) -> Reply:
    folder = Folder()
    try:
        folder.add(lenient.loads(body))
    except ValueError:
        return Reply(error=f"the reply is no JSON: {_excerpt(body)}")
    return folder.finish(whole=True)


def _error_in(payload: dict[str, Any]) -> str | None:
    """The message of an error object, in any of the shapes in use: nested, a plain string, or flat."""
    error = payload.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error)
    if error:
        return str(error)
    return str(payload.get("message")) if payload.get("object") == "error" else None


def _excerpt(data: bytes) -> str:
    return data[:_EXCERPT].decode("utf-8", "replace")
