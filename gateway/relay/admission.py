"""Refuses requests that no engine may get: private fields, impossible token ids, too many answers. Pure.

Only keys that are there are looked at, so an ordinary body costs a few look-ups, whatever its length.
"""

from collections.abc import Mapping
from typing import Any

from gateway.relay.capture import CHAT, COMPLETIONS
from gateway.relay.errors import INVALID_TOKEN_ID, N_TOO_LARGE, PRIVATE_FIELD, BadRequestError

#: Answers to one request, as at OpenAI. Each takes memory and a place in the engine's batch.
MOST_CHOICES = 128

#: What an engine's parts, its router or a trainer say to it, and no ordinary client: SGLang 0.5.23 (its
#: protocol.py) and vLLM's names for the same. Each can read, reroute, slow or kill the requests of others,
#: run code, or make an answer that is not of the recorded body. `cache_salt` is none of them, since clients
#: send it to vLLM: it is dropped (gateway/relay/capture.py).
PRIVATE = frozenset(
    {
        # where it runs
        "bootstrap_host", "bootstrap_port", "bootstrap_room", "routed_dp_rank", "disagg_prefill_dp_rank",
        "data_parallel_rank", "kv_transfer_params", "priority",
        # what stands for the prompt
        "input_ids", "input_embeds", "prompt_embeds", "embed_overrides", "embed_override_token_id",
        "query_embed_overrides", "item_embed_overrides", "session_params",
        # code, and what is handed to it
        "custom_logit_processor", "custom_params", "logits_processors", "vllm_xargs",
        # names inside the engine
        "rid", "lora_path", "extra_key", "custom_labels",
        # its insides in the answer
        "return_hidden_states", "return_pooled_hidden_states", "return_routed_experts",
        "routed_experts_start_len",
    }
)  # fmt: skip

#: Path → (field, whether texts may stand there as well): where clients give token ids.
_PLACES: dict[str, tuple[tuple[str, bool], ...]] = {
    CHAT: (
        ("stop_token_ids", False),
        ("allowed_token_ids", False),
        ("token_ids_logprob", False),
        ("input_ids", False),
    ),
    COMPLETIONS: (
        ("prompt", True),
        ("stop_token_ids", False),
        ("allowed_token_ids", False),
        ("token_ids_logprob", False),
    ),
    "/v1/embeddings": (("input", True), ("embed_override_token_id", False)),
    "/v1/classify": (("input", True),),
    "/v1/score": (
        ("query", True),
        ("items", True),
        ("label_token_ids", False),
        ("embed_override_token_id", False),
    ),
    "/v1/detokenize": (("tokens", False),),
}


def check_fields(body: Mapping[str, Any], refused: frozenset[str]) -> None:
    """Raises BadRequestError for a field of `refused` that is not null."""
    if refused.isdisjoint(body):
        return
    for name in body:
        if name in refused and body[name] is not None:
            raise BadRequestError(
                f"`{name}` is private to the engine and refused here: leave it out "
                '(its operator may allow such fields: engine.private_fields = "pass")',
                code=PRIVATE_FIELD,
                param=name,
            )


def check_choices(path: str, body: Mapping[str, Any]) -> None:
    """Raises BadRequestError where more than MOST_CHOICES answers are asked for."""
    if path not in (CHAT, COMPLETIONS):
        return
    for name in ("n", "best_of"):
        value = body.get(name)
        if value is not None and _number(value) > MOST_CHOICES:
            raise BadRequestError(
                f"`{name}` must be at most {MOST_CHOICES}: send several requests",
                code=N_TOO_LARGE,
                param=name,
            )


def check_ids(path: str, body: Mapping[str, Any], vocabulary: int | None) -> None:
    """Refuses ids that no model knows: one of them kills the whole engine.

    `vocabulary`: how many ids there are; None where that is unknown, and any id may be right.

    Raises:
        BadRequestError: an id is negative, no integer, or beyond the vocabulary.
    """
    for name, texts in _PLACES.get(path, ()):
        value = body.get(name)
        if value is not None:
            _refuse(name, _wrong(_ids_in(value, texts=texts), vocabulary), vocabulary)
    if path in (CHAT, COMPLETIONS) and isinstance(bias := body.get("logit_bias"), dict):
        ids = [int(key) if _is_decimal(key) else key for key in bias]
        _refuse("logit_bias", _wrong(ids, vocabulary), vocabulary)


def _ids_in(value: object, *, texts: bool) -> list[object]:
    """All values in the place of ids, in one list; texts are left out where `texts` are allowed."""
    if not isinstance(value, list):
        return [] if texts else [value]
    kinds = set(map(type, value))
    if kinds == {int}:
        return value  # nearly always: it may be long, and is not copied
    found: list[object] = []
    for element in value:
        if isinstance(element, list):
            found += element
        elif not (texts and isinstance(element, str | dict)):
            found.append(element)
    return found


def _wrong(ids: list[Any], vocabulary: int | None) -> list[object]:
    """The first value that is no id, in a list of its own; empty where there is none."""
    below = float("inf") if vocabulary is None else vocabulary
    if not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < below):
        return []
    return next([i] for i in ids if type(i) is not int or not 0 <= i < below)


def _refuse(name: str, wrong: list[object], vocabulary: int | None) -> None:
    for found in wrong:
        shown = repr(found)[:40]
        known = "" if vocabulary is None else f" below {vocabulary}, the size of the model's vocabulary"
        raise BadRequestError(
            f"`{name}` holds {shown}: token ids are integers from 0{known}", code=INVALID_TOKEN_ID, param=name
        )


def _is_decimal(key: object) -> bool:
    return isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20


def _number(value: object) -> float:
    """A number as an engine reads it: also one that stands in a text. NaN for anything else."""
    try:
        return float(value) if isinstance(value, int | float | str) else float("nan")
    except ValueError:
        return float("nan")
    except OverflowError:  # an integer of hundreds of digits
        return float("inf")
