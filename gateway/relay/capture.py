"""Parses and checks a request's body, and adds the fields that ask an engine for token ids. Pure.

The client's own bytes are recorded; the engine gets a copy with the fields added. A field is added only where
the client did not set it, and only what was added is removed from the reply again (gateway/relay/filter.py).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.relay import identity
from gateway.relay.errors import BadRequestError
from gateway.relay.filter import Cuts

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

#: Dialect → (path, streaming) → fields that are set to true. SGLang refuses the fields of a stream in a
#: request for a whole reply, and the reverse. Other engines may refuse both, so dialect `plain` has none.
FIELDS: dict[str, dict[tuple[str, bool], tuple[str, ...]]] = {
    "sglang": {
        (CHAT, False): ("return_token_ids", "return_meta_info", "logprobs"),
        (CHAT, True): ("return_input_ids_in_sglext", "return_output_ids_in_sglext", "logprobs"),
        (COMPLETIONS, False): ("return_token_ids",),
        (COMPLETIONS, True): ("return_token_ids",),
    },
    "vllm": {
        (CHAT, False): ("return_token_ids", "logprobs"),
        (CHAT, True): ("return_token_ids", "logprobs"),
        (COMPLETIONS, False): ("return_token_ids",),
        (COMPLETIONS, True): ("return_token_ids",),
    },
}
#: An added field → the keys that it adds to the reply.
_REPLY_KEYS = {
    "return_token_ids": ("prompt_token_ids", "response_token_ids", "token_ids"),
    "return_meta_info": ("meta_info",),
}
#: An added field → the key that it adds to `sglext` in a stream.
_SGLEXT_KEYS = {"return_input_ids_in_sglext": "input_ids", "return_output_ids_in_sglext": "output_ids"}
#: Fields that only Dukou sets: a client's own is dropped.
_RESERVED_FIELDS = (*identity.BODY_FIELDS, "rid", "cache_salt", "lora_path")


@dataclass(frozen=True, slots=True)
class Recipient:
    """The engine that a request goes to, as far as its body depends on it."""

    version: int | None = None
    adapter: str | None = None  # the name under which the engine has the version's adapter
    dialect: str = "sglang"  # a key of FIELDS, or plain


@dataclass(frozen=True, slots=True)
class Forward:
    """A request as an engine gets it."""

    body: bytes
    added: tuple[str, ...]  # names of the fields that Dukou added
    cuts: Cuts  # what these fields add to the reply, to be removed from it
    abortable: bool  # true where /abort_request with the turn's id stops it

    @property
    def captures(self) -> bool:
        """True where token ids are asked for."""
        return "return_token_ids" in self.added or "return_output_ids_in_sglext" in self.added


def parse(body: bytes) -> dict[str, Any]:
    """The body as an object. Raises BadRequestError where it is not a JSON object."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        parsed = _parse_leniently(body)
    if not isinstance(parsed, dict):
        raise BadRequestError("the request body must be a JSON object")
    return parsed


def check(path: str, body: Mapping[str, Any], models: tuple[str, ...]) -> None:
    """Refuses requests that an engine would answer wrongly without reporting an error.

    Raises:
        BadRequestError: an unknown model (404); functions instead of tools, or a limit of no tokens (400).
    """
    model = body.get("model")
    if isinstance(model, str) and model not in models:
        known = ", ".join(models)
        raise BadRequestError(
            f"this model does not exist; there is {known}", status=404, code="model_not_found", param="model"
        )
    for name in ("functions", "function_call"):
        if path == CHAT and body.get(name) is not None:
            raise BadRequestError(f"`{name}` is not supported: use `tools`", code="unsupported", param=name)
    for name in ("max_completion_tokens", "max_tokens", "n"):  # of 0 SGLang makes a 200 with nothing in it
        limit = body.get(name)
        if path == CHAT and isinstance(limit, int) and limit < 1:
            raise BadRequestError(f"`{name}` must be at least 1", code="invalid_value", param=name)


def prepare(
    path: str, body: Mapping[str, Any], turn_id: str, recipient: Recipient, *, capturing: bool
) -> Forward:
    """The request as `recipient` gets it; with `capturing` false, token ids are not asked for."""
    sent = {name: value for name, value in body.items() if name not in _RESERVED_FIELDS}
    if path == CHAT:
        sent = with_system_role(sent)
    streaming = body.get("stream") is True
    fields = FIELDS.get(recipient.dialect, {}).get((path, streaming), ()) if capturing else ()
    added = _add_fields(sent, fields, streaming)
    abortable = False
    if recipient.dialect == "sglang" and path in (CHAT, COMPLETIONS):
        added += _add_reserved(sent, path, turn_id, recipient)
        abortable = sent.get("rid") == turn_id and sent.get("n") in (None, 1)
    elif recipient.adapter:
        sent["model"] = recipient.adapter
    shown = body.get("model") if recipient.adapter and isinstance(body.get("model"), str) else None
    return Forward(_dump(sent), tuple(added), cuts_of(added, shown), abortable)


def cuts_of(added: list[str], model: str | None) -> Cuts:
    """What has to be removed from the reply because of the `added` fields.

    `model`: the name that replaces the engine's in the reply; None leaves it.
    """
    return Cuts(
        logprobs="logprobs" in added,
        usage="stream_options.include_usage" in added,
        keys=tuple(key for name in added for key in _REPLY_KEYS.get(name, ())),
        sglext=frozenset(_SGLEXT_KEYS[name] for name in added if name in _SGLEXT_KEYS),
        model=model,
    )


def with_system_role(body: dict[str, Any]) -> dict[str, Any]:
    """The body with its `developer` messages as `system`, since chat templates silently drop that role.

    They and the system messages become one, in order, since templates allow only one, at the beginning.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(_role(message) == "developer" for message in messages):
        return body
    system = [message for message in messages if _role(message) in ("system", "developer")]
    others = [message for message in messages if _role(message) not in ("system", "developer")]
    parts = [part for message in system for part in _content_parts(message.get("content"))]
    only_text = all(isinstance(part, dict) and part.get("type") == "text" for part in parts)
    content = "\n\n".join(str(part.get("text", "")) for part in parts) if only_text else parts
    return body | {"messages": [system[0] | {"role": "system", "content": content}, *others]}


def _add_fields(sent: dict[str, Any], fields: tuple[str, ...], streaming: bool) -> list[str]:
    added = [name for name in fields if sent.get(name) is not True]
    sent.update(dict.fromkeys(added, True))
    options = sent.get("stream_options")
    options = options if isinstance(options, dict) else {}
    if fields and streaming and options.get("include_usage") is not True:
        sent["stream_options"] = options | {"include_usage": True}
        added.append("stream_options.include_usage")
    return added


def _add_reserved(sent: dict[str, Any], path: str, turn_id: str, recipient: Recipient) -> list[str]:
    reserved: dict[str, Any] = {}
    prompt = sent.get("prompt")
    one_prompt = isinstance(prompt, str) or (
        isinstance(prompt, list) and all(isinstance(i, int) for i in prompt)
    )
    if path == CHAT or one_prompt:
        reserved["rid"] = turn_id
    if recipient.version is not None:
        reserved["cache_salt"] = str(recipient.version)
    if recipient.adapter is not None:
        reserved["lora_path"] = recipient.adapter
    sent.update(reserved)
    return list(reserved)


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, dict) else None


def _content_parts(content: object) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) else []


def _parse_leniently(body: bytes) -> object:
    """Parses what orjson refuses and clients do send, such as lone surrogates."""
    try:
        return json.loads(body)
    except ValueError as error:
        raise BadRequestError(f"the request body is not valid JSON: {_location(error)}") from None


def _location(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno} column {error.colno}"
    return "not UTF-8"


def _dump(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # a lone surrogate, or an integer of more than 64 bits
        return json.dumps(body).encode()
