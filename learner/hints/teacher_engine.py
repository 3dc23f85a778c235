"""A teacher engine: an SGLang that scores given tokens, at temperature 1 whatever it is told.

It is asked only while it serves no other request: two scoring requests of 800 tokens took an engine's users
from 0.15 to 1.9 seconds per token.

An engine's log-probabilities of given tokens, put on those tokens and no others. Pure.

`/generate` answers `[[null, id, …], [logprob, id, …], …]` from the position that was asked for: the first
token has nothing before it that was scored, so one token more is asked for and its entry is dropped.
"""

from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from dukou.errors import DukouError


class AlignmentError(DukouError):
    """The entries are not those of the tokens that were asked about: nothing may be made of them."""


def on_tokens(entries: Sequence[Any], ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """Log-probabilities, (N,) float32 in nats, of the N `ids` that end the entries; NaN where one is null.

    Raises:
        AlignmentError: too few entries, or an id that is not the one asked about.
    """
    if len(entries) < len(ids):
        raise AlignmentError(f"{len(entries)} log-probabilities for {len(ids)} tokens")
    last = entries[len(entries) - len(ids) :]
    for position, (entry, wanted) in enumerate(zip(last, ids, strict=True)):
        if int(entry[1]) != int(wanted):
            raise AlignmentError(f"position {position} is token {entry[1]}, not {wanted}: another tokenizer?")
    if len(entries) == len(ids) and len(ids):
        raise AlignmentError("the first token has no entry before it: one token more must be asked for")
    return np.array([np.nan if entry[0] is None else entry[0] for entry in last], np.float32)


SECONDS = 60.0

#: Texts whose ids tell two tokenizers apart: scripts, digits, white space, code, specials, emoji.
PROBES = (
    "The ferry crosses the river.",
    "渡口边有一条小船。",
    "def f(x):\n\treturn x ** 2  # 1234567890",
    "naïve façade — “quotes” … 🚢🚢",
    "<|im_start|>user\n</s>[INST]\u200b",
)


class TeacherEngineError(DukouError):
    """The teacher engine cannot be used, in a sentence."""


class TeacherEngine:
    """Asks one engine. From any thread."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._client = httpx.Client(base_url=self._url, timeout=SECONDS)

    def close(self) -> None:
        self._client.close()

    def is_idle(self) -> bool:
        """Whether it has nothing to do for anybody; False too where it does not say."""
        try:
            reply = self._client.get("/v1/loads")
            loads = reply.json()
        except (httpx.HTTPError, ValueError):
            return False
        return reply.status_code == 200 and _busy(loads) == 0

    def verify(self, encode: Any) -> None:
        """Compares tokenizers by PROBES; `encode` maps a text to the policy's ids.

        Raises:
            TeacherEngineError: they differ, or the engine cannot be asked.
        """
        for text in PROBES:
            reply = self._post("/v1/tokenize", {"prompt": text, "add_special_tokens": False})
            theirs, ours = list(reply.get("tokens") or ()), list(encode(text))
            if theirs != ours:
                raise TeacherEngineError(
                    f"teacher.engine_url {self._url} has another tokenizer than the policy: its "
                    "log-probabilities would be of other tokens"
                )

    def logprobs(self, prompt: Sequence[int], answer: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Nats of each answer token at temperature 1, (N,); NaN where the engine gives none.

        Raises:
            AlignmentError: the engine's entries are not those of the answer.
            TeacherEngineError: the engine cannot be asked.
        """
        if not len(prompt):
            raise AlignmentError("an answer without a prompt has no first log-probability")
        body = {
            "input_ids": [*map(int, prompt), *map(int, answer)],
            # Not 0: requests beside a greedy one get the engine's slow sampler until it is idle.
            "sampling_params": {"temperature": 1, "max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": len(prompt) - 1,
        }
        meta = self._post("/generate", body).get("meta_info") or {}
        return on_tokens(meta.get("input_token_logprobs") or (), answer)

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            reply = self._client.post(path, json=body)
            answer = reply.json()
        except (httpx.HTTPError, ValueError) as error:
            raise TeacherEngineError(f"teacher.engine_url {self._url}: {type(error).__name__}") from error
        if reply.status_code != 200 or not isinstance(answer, dict):
            raise TeacherEngineError(f"teacher.engine_url {self._url} answered {reply.status_code} to {path}")
        return answer


def _busy(loads: Any) -> int:
    """Requests that run or wait, in whatever the engine's report nests them."""
    if isinstance(loads, list):
        return sum(map(_busy, loads))
    if not isinstance(loads, dict):
        return 0
    own = sum(
        int(value)
        for name, value in loads.items()
        if name in ("num_running_reqs", "num_waiting_reqs", "num_reqs") and isinstance(value, int)
    )
    return own + sum(_busy(value) for value in loads.values() if isinstance(value, dict | list))
