"""Messages to token ids, as the engine renders them: with the base model's own chat template."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dukou.errors import DukouError

_TAG = re.compile(r"[<\[].*[>\]]", re.S)

Ids = npt.NDArray[np.int32]
#: (messages, tools, template arguments) → ids of the prompt, generation prompt included.
Render = Callable[[Sequence[Any], Any, dict[str, Any]], Ids]


class CannotRenderError(DukouError):
    """The conversation does not render to the ids that were recorded, or not at all."""


class ControlTokensError(CannotRenderError):
    """A hint became tokens that begin or end turns, or mean something else than words."""


def renderer(model: Path) -> Render:
    """Renders for the model in this folder. Raises OSError or ValueError where it has no tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)

    def render(messages: Sequence[Any], tools: Any, arguments: dict[str, Any]) -> Ids:
        try:
            text = tokenizer.apply_chat_template(
                [plain(message) for message in messages],
                tools=tools or None,
                tokenize=False,
                add_generation_prompt=True,
                **arguments,
            )
        except Exception as error:  # a template is a program of the model's: whatever it raises
            raise CannotRenderError(f"the chat template refuses the conversation: {error}") from error
        return np.asarray(tokenizer.encode(text, add_special_tokens=False), np.int32)

    return render


def control_tokens(model: Path) -> frozenset[int]:
    """The ids that are more than words: special tokens, and added ones that look like tags (`<think>`).

    Raises OSError or ValueError where the model has no tokenizer.
    """
    from transformers import AutoTokenizer

    added = AutoTokenizer.from_pretrained(model, local_files_only=True).added_tokens_decoder
    return frozenset(
        number for number, token in added.items() if token.special or _TAG.fullmatch(token.content.strip())
    )


def encoder(model: Path) -> Callable[[str], list[int]]:
    """Text to ids by the model's own tokenizer. Raises OSError or ValueError where it has none."""
    from tokenizers import Tokenizer

    path = model / "tokenizer.json"
    tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a prompt was rendered from, as the request had it."""

    messages: Sequence[Any]
    tools: Any = None
    sampling: Mapping[str, Any] = field(default_factory=dict)

    @property
    def template_arguments(self) -> dict[str, Any]:
        found: Any = self.sampling.get("chat_template_kwargs")
        return dict(found or {})


def enhanced(
    render: Render,
    conversation: Conversation,
    hinted: Sequence[Any],
    recorded: Ids,
    control: Collection[int] = (),
) -> Ids:
    """The prompt ids (P,) of the conversation with the messages `hinted` in the place of its own.

    `recorded` (P,): the prompt ids of the turn. `control`: the ids that are more than words.

    Raises:
        ControlTokensError: the hint adds or takes tokens of `control`.
        CannotRenderError: the conversation without the hint is not what was recorded, so that the one with
            it would differ from the turn in more than the hint.
    """
    arguments = conversation.template_arguments
    for offered in _ways(conversation.tools):
        if np.array_equal(render(conversation.messages, offered, arguments), recorded):
            told = render(hinted, offered, arguments)
            if not np.array_equal(_only(told, control), _only(recorded, control)):
                raise ControlTokensError("a hint would become control tokens of the chat template")
            return told
    raise CannotRenderError("the conversation without the hint does not render to the recorded prompt ids")


def _only(ids: Ids, control: Collection[int]) -> Ids:
    return ids[np.isin(ids, sorted(control))]


def _ways(tools: Any) -> list[Any]:
    """Tools as engines hand them to a template: as sent, or only what is inside `function`."""
    if not isinstance(tools, list) or not tools:
        return [None]
    return [tools, [tool.get("function", tool) if isinstance(tool, dict) else tool for tool in tools]]


def plain(message: Any) -> Any:
    """A message as templates expect it: text parts joined, tool arguments as objects."""
    if not isinstance(message, dict):
        return message
    made = dict(message)
    content = made.get("content")
    if isinstance(content, list):
        made["content"] = " ".join(str(part["text"]) for part in content if _is_text(part))
    elif content is None and "content" in made:
        made["content"] = ""
    if isinstance(made.get("tool_calls"), list):
        made["tool_calls"] = [_call(call) for call in made["tool_calls"]]
    return made


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}
