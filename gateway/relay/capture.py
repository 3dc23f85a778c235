"""What Dukou adds to a request so that the engine says which tokens it saw and made. Pure.

The client's own bytes are what is recorded; the engine gets this copy. Only a field that the client did
not set itself is added, and only what was added is taken out of the reply again (gateway/relay/filter.py).
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

#: (path, streaming) → fields that are set to true. SGLang refuses those of its other row. An engine that
#: knows neither row ignores them, or refuses the request: a plain one is asked for nothing.
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
#: An added field → the keys of the reply that come of it.
_KEYS = {
    "return_token_ids": ("prompt_token_ids", "response_token_ids", "token_ids"),
    "return_meta_info": ("meta_info",),
}
_SGLEXT = {"return_input_ids_in_sglext": "input_ids", "return_output_ids_in_sglext": "output_ids"}
#: What only Dukou may say to the engine: a client's own is dropped.
_OURS = (*identity.TWINS, "rid", "cache_salt", "lora_path")


@dataclass(frozen=True, slots=True)
class Route:
    """What the routes file says of the engine that a request goes to."""

    version: int | None = None
    adapter: str | None = None
    dialect: str = "sglang"


@dataclass(frozen=True, slots=True)
class Forward:
    body: bytes  # what the engine gets
    added: tuple[str, ...]  # the fields that Dukou asked for
    cuts: Cuts  # what they bring, to be taken out
    abortable: bool  # whether /abort_request with the turn id reaches it

    @property
    def captures(self) -> bool:
        """Whether token ids were asked for."""
        return "return_token_ids" in self.added or "return_output_ids_in_sglext" in self.added


def parse(body: bytes) -> dict[str, Any]:
    """The body as an object. Raises BadRequestError otherwise."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        parsed = _parse_leniently(body)
    if not isinstance(parsed, dict):
        raise BadRequestError("the request body must be a JSON object")
    return parsed


def check(path: str, body: Mapping[str, Any], models: tuple[str, ...]) -> None:
    """Refuses what would otherwise be answered wrongly without a word.

    Raises:
        BadRequestError: an unknown model (404), functions instead of tools, or room for no token (400).
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


def prepare(path: str, body: Mapping[str, Any], turn_id: str, route: Route, *, capturing: bool) -> Forward:
    """The request as the engine gets it; with `capturing` false, nothing is asked for."""
    sent = {name: value for name, value in body.items() if name not in _OURS}
    if path == CHAT:
        sent = with_system_role(sent)
    streaming = body.get("stream") is True
    fields = FIELDS.get(route.dialect, {}).get((path, streaming), ()) if capturing else ()
    added = _add_fields(sent, fields, streaming)
    abortable = False
    if route.dialect == "sglang" and path in (CHAT, COMPLETIONS):
        added += _add_own(sent, path, turn_id, route)
        abortable = sent.get("rid") == turn_id and sent.get("n") in (None, 1)
    elif route.adapter:
        sent["model"] = route.adapter
    shown = body.get("model") if route.adapter and isinstance(body.get("model"), str) else None
    return Forward(_dump(sent), tuple(added), cuts_of(added, shown), abortable)


def cuts_of(added: list[str], model: str | None) -> Cuts:
    """What has to be taken out of the reply because of the `added` fields."""
    return Cuts(
        logprobs="logprobs" in added,
        usage="stream_options.include_usage" in added,
        keys=tuple(key for name in added for key in _KEYS.get(name, ())),
        sglext=frozenset(_SGLEXT[name] for name in added if name in _SGLEXT),
        model=model,
    )


def with_system_role(body: dict[str, Any]) -> dict[str, Any]:
    """`developer` messages as `system`: chat templates know no other name, and drop them without a word.

    Later ones join the first system message, in order, since templates allow only one at the beginning.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(_role(message) == "developer" for message in messages):
        return body
    told = [message for message in messages if _role(message) in ("system", "developer")]
    others = [message for message in messages if _role(message) not in ("system", "developer")]
    parts = [part for message in told for part in _parts(message.get("content"))]
    only_text = all(isinstance(part, dict) and part.get("type") == "text" for part in parts)
    content = "\n\n".join(str(part.get("text", "")) for part in parts) if only_text else parts
    return body | {"messages": [told[0] | {"role": "system", "content": content}, *others]}


def _add_fields(sent: dict[str, Any], fields: tuple[str, ...], streaming: bool) -> list[str]:
    added = [name for name in fields if sent.get(name) is not True]
    sent.update(dict.fromkeys(added, True))
    options = sent.get("stream_options")
    options = options if isinstance(options, dict) else {}
    if fields and streaming and options.get("include_usage") is not True:
        sent["stream_options"] = options | {"include_usage": True}
        added.append("stream_options.include_usage")
    return added


def _add_own(sent: dict[str, Any], path: str, turn_id: str, route: Route) -> list[str]:
    own: dict[str, Any] = {}
    prompt = sent.get("prompt")
    one_prompt = isinstance(prompt, str) or (
        isinstance(prompt, list) and all(isinstance(i, int) for i in prompt)
    )
    if path == CHAT or one_prompt:
        own["rid"] = turn_id
    if route.version is not None:
        own["cache_salt"] = str(route.version)
    if route.adapter is not None:
        own["lora_path"] = route.adapter
    sent.update(own)
    return list(own)


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, dict) else None


def _parts(content: object) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) else []


def _parse_leniently(body: bytes) -> object:
    """Lone surrogates, which orjson refuses and clients do send."""
    try:
        return json.loads(body)
    except ValueError as error:
        raise BadRequestError(f"the request body is not valid JSON: {_place(error)}") from None


def _place(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno} column {error.colno}"
    return "not UTF-8"


def _dump(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # a lone surrogate, or an integer of more than 64 bits
        return json.dumps(body).encode()
