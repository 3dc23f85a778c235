"""How an answer was sampled: log-probabilities mean nothing without it. Pure.

`free`: from the whole softmax at a temperature above 0.
`truncated`: top-p, top-k or min-p cut the distribution, but not the recorded log-probabilities, which are of
the whole softmax at the temperature. Whether it is trained, the learner's settings say.
`constrained`: a grammar, a forced tool call, penalties or a bias changed the distribution itself. With tools
that are strict and not forced this depends on the answer (`gateway/drain/trainable.py`).
`greedy`: the argmax, which is no sample.

What an answer was sampled with: the request, and for what it leaves out the engine's defaults. Pure.

The defaults are those of a chat request. Nobody may guess them: a model's own file can hold a temperature, a
top-p and a penalty, and an answer that was sampled with those is another sample than one at temperature 1.
"""

from collections.abc import Mapping
from typing import Any, Literal

SamplingClass = Literal["free", "truncated", "constrained", "greedy"]

DEFAULT_TEMPERATURE = 1.0  # the engine's own, where neither request nor model names one
GREEDY_BELOW = 1e-6  # a temperature that the engine takes for 0
UNTRUNCATED_TOP_K = 1 << 30  # the engine's own word for "all tokens"

#: Request fields that are about sampling: stored as they were sent.
FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "max_tokens", "max_completion_tokens",
    "min_tokens", "n", "stop", "stop_token_ids", "seed", "sampling_seed", "presence_penalty",
    "frequency_penalty",
    "repetition_penalty", "logit_bias", "response_format", "tool_choice", "regex", "ebnf", "json_schema",
    "structural_tag", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "ignore_eos",
    "custom_logit_processor", "skip_special_tokens", "no_stop_trim", "continue_final_message",
    "chat_template_kwargs", "reasoning_effort",
)  # fmt: skip
_GRAMMARS = (
    "regex", "ebnf", "json_schema", "structural_tag", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar", "custom_logit_processor", "logit_bias", "beam_width",
)  # fmt: skip
#: A request that has none of these is sampled freely.
_TELLING = frozenset(
    (*_GRAMMARS, "top_p", "top_k", "min_p", "typical_p", "presence_penalty", "frequency_penalty",
     "repetition_penalty", "min_tokens", "response_format", "tools", "tool_choice")
)  # fmt: skip
#: Field and the value that changes nothing.
_NEUTRAL = (("presence_penalty", 0), ("frequency_penalty", 0), ("repetition_penalty", 1), ("min_tokens", 0))


def parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling fields of a request, as sent."""
    return {name: body[name] for name in FIELDS if name in body}


def temperature(body: Mapping[str, Any]) -> float:
    """What a body says; see `gateway.drain.sampling` for what an answer was sampled at."""
    value = _number(body.get("temperature"))
    return DEFAULT_TEMPERATURE if value is None else value


def classify(body: Mapping[str, Any]) -> SamplingClass:
    """The class of a chat request's body in which nothing is left out that the engine has a default for."""
    if temperature(body) < GREEDY_BELOW or _number(body.get("top_k")) == 1:
        return "greedy"
    if _TELLING.isdisjoint(body):
        return "free"
    if _is_constrained(body):
        return "constrained"
    return "truncated" if _is_truncated(body) else "free"


def _is_constrained(body: Mapping[str, Any]) -> bool:
    penalised = any(_number(body.get(name), neutral) != neutral for name, neutral in _NEUTRAL)
    return penalised or any(body.get(name) for name in _GRAMMARS) or _has_format(body) or _forces_a_tool(body)


def _has_format(body: Mapping[str, Any]) -> bool:
    wanted = body.get("response_format")
    return isinstance(wanted, dict) and wanted.get("type", "text") != "text"


def _forces_a_tool(body: Mapping[str, Any]) -> bool:
    """Whether an answer must be a call. Strict tools that it may call are for `gateway.drain.trainable`."""
    return body.get("tool_choice") not in (None, "auto", "none") and bool(offered_tools(body))


def offered_tools(body: Mapping[str, Any]) -> list[Any]:
    """The tools of a chat request: its own, and those that its system messages bring."""
    messages = body.get("messages")
    said = messages if isinstance(messages, list) else ()
    holders = [one for one in said if isinstance(one, dict) and "tools" in one and _instructs(one)]
    offered = [body.get("tools"), *(one["tools"] for one in holders)] if holders else [body.get("tools")]
    return [tool for tools in offered if isinstance(tools, list) for tool in tools]


def _instructs(message: Mapping[str, Any]) -> bool:
    """Whether the message has a role whose messages may offer tools."""
    return message.get("role") in ("root", "system", "developer")


def _is_truncated(body: Mapping[str, Any]) -> bool:
    top_k = _number(body.get("top_k"), -1)
    return (
        _number(body.get("top_p"), 1) != 1
        or _number(body.get("typical_p"), 1) != 1
        or _number(body.get("min_p"), 0) != 0
        or (top_k is not None and 0 < top_k < UNTRUNCATED_TOP_K)
    )


def _number(value: Any, missing: float | None = None) -> float | None:
    """A number as the engine reads it: from a text or a truth value too."""
    if not isinstance(value, int | float | str):
        return missing
    try:
        return float(value)
    except (ValueError, OverflowError):
        return missing


#: The fields that an engine may take from its model where a chat request leaves them out: SGLang 0.5.23 takes
#: these of `generation_config.json`, whatever else it holds (`do_sample` too), and vLLM takes them as well.
DEFAULT_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
#: What a request settles by itself, whatever the engine takes for the rest.
_SETTLED: tuple[SamplingClass, ...] = ("greedy", "constrained")


def completed(body: Mapping[str, Any], defaults: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A chat request with all that it was sampled with; a field that is null counts as left out.

    `defaults` None: unknown. Returns None where the request leaves out a field whose default is unknown.
    """
    if defaults is None:
        return None if any(body.get(name) is None for name in DEFAULT_FIELDS) else body
    taken = {name: value for name, value in defaults.items() if body.get(name) is None}
    return {**body, **taken} if taken else body


def sampling_class(body: Mapping[str, Any], defaults: Mapping[str, Any] | None) -> SamplingClass | None:
    """The class of a chat answer, by request and defaults together; None: unknown."""
    whole = completed(body, defaults)
    if whole is not None:
        return classify(whole)
    alone = classify(body)
    return alone if alone in _SETTLED else None


def effective_temperature(body: Mapping[str, Any], defaults: Mapping[str, Any] | None) -> float | None:
    """The temperature that a chat answer was sampled at; None: unknown."""
    whole = completed(body, defaults)
    if whole is not None:
        return temperature(whole)
    return None if body.get("temperature") is None else temperature(body)
