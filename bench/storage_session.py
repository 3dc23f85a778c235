"""A made-up agent session: requests with their whole history and replies with ids, as workers spool them."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gateway.spool.format import Kind, Record

START = 1_790_000_000  # seconds since 1970
ASKED, ANSWERED = (50, 650), (20, 280)  # tokens that each turn adds: from, to; 500 in the mean


@dataclass(slots=True)
class Session:
    """A word is a token, about 5 bytes of text. The k-th most frequent has a share proportional to 1/k, as in
    language, and some id below 150,000, as in a vocabulary."""

    seed: int = 1
    messages: list[dict[str, Any]] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    generated: int = 0
    _random: random.Random = field(init=False)
    _words: list[str] = field(init=False)
    _ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        letters = "etaoinshrdlucmfwypvbgk"
        self._words = [
            "".join(self._random.choices(letters, k=self._random.randint(1, 8))) for _ in range(30_000)
        ]
        self._ids = self._random.sample(range(150_000), len(self._words))

    def turns(self, count: int) -> Iterator[tuple[Record, Record]]:
        """Each turn's two records; the history grows by a question, or a tool's result, and an answer."""
        self._say("system", 200)
        for number in range(count):
            self._say("user" if number % 4 == 0 else "tool", self._random.randint(*ASKED))
            ids, text = self._tokens(self._random.randint(*ANSWERED))
            yield self._records(number, ids, text)
            self.messages.append({"role": "assistant", "content": text})
            self.prompt += ids
            self.generated += len(ids)

    @property
    def id(self) -> str:
        return f"agent-{self.seed}"

    @property
    def distinct_bytes(self) -> int:
        """Each message once, 8 bytes for a generated token's id and log-probability, 4 for any other id."""
        said = sum(len(json.dumps(message).encode()) for message in self.messages)
        return said + 8 * self.generated + 4 * (len(self.prompt) - self.generated)

    def _say(self, role: str, count: int) -> None:
        ids, text = self._tokens(count)
        self.messages.append({"role": role, "content": text})
        self.prompt += ids

    def _tokens(self, count: int) -> tuple[list[int], str]:
        ranks = [int(len(self._words) ** self._random.random()) - 1 for _ in range(count)]
        return [self._ids[rank] for rank in ranks], " ".join(self._words[rank] for rank in ranks)

    def _records(self, number: int, ids: list[int], text: str) -> tuple[Record, Record]:
        at = START + number
        turn = f"{at * 1000:012x}7{self._random.getrandbits(12):03x}8{self._random.getrandbits(60):015x}"
        asked = {
            "id": turn,
            "at_ns": at * 10**9,
            "tenant": "bench",
            "key_id": "k",
            "path": "/v1/chat/completions",
            "headers": {},
            "session": {"id": self.id, "source": "x-session-id"},
            "engine": "http://engine",
            "stream": False,
        }
        answered = {"id": turn, "outcome": "ok", "http_status": 200, "version_min": 0, "version_max": 0}
        answered["sampling_defaults"] = {}
        answered |= {"first_byte_ns": asked["at_ns"], "finished_ns": asked["at_ns"]}
        logprobs = [[-self._random.expovariate(1.0), one, None] for one in ids]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
            "prompt_token_ids": self.prompt,
            "response_token_ids": ids,
            "meta_info": {"output_token_logprobs": logprobs},
        }
        request = {"model": "policy", "messages": self.messages, "temperature": 1.0}
        return (
            Record(Kind.REQUEST, asked, json.dumps(request).encode()),
            Record(Kind.REPLY, answered, json.dumps({"id": "c", "choices": [choice]}).encode()),
        )
