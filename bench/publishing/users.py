"""Users who stream without a pause, and what each of their answers looked like on the clock."""

import asyncio
import time
from dataclasses import dataclass, field

import httpx
import orjson

CHAT = "/v1/chat/completions"
_TEXT = "The ferry crosses the river, and the man at the landing counts the coins of those who wait. "


@dataclass(slots=True)
class Answer:
    """Times are seconds on the monotonic clock."""

    sent: float
    session: str
    version: int | None = None  # as the response's header says
    chunks: list[float] = field(default_factory=list)
    finish: str | None = None
    done: bool = False
    error: str | None = None

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.chunks, self.chunks[1:], strict=False)]

    @property
    def stall(self) -> float:
        """The longest time in which the user saw nothing, the wait for the first token among them."""
        return max([self.chunks[0] - self.sent, *self.gaps]) if self.chunks else float("inf")


class Users:
    """`count` users of one gateway. `block` names their sessions.

    Their answers are of different lengths, up to `tokens`: so they ask at different moments, whatever
    brought them into step.
    """

    def __init__(self, url: str, block: str, count: int, tokens: int) -> None:
        self.answers: list[Answer] = []
        self._url, self._block, self._count, self._tokens = url, block, count, tokens
        self._stopped = False

    async def run(self) -> None:
        """Until `stop`; answers that were begun are read to their end."""
        async with httpx.AsyncClient(base_url=self._url, timeout=120) as client:
            await asyncio.gather(*(self._user(client, user) for user in range(self._count)))

    def stop(self) -> None:
        self._stopped = True

    async def _user(self, client: httpx.AsyncClient, user: int) -> None:
        turn = 0
        while not self._stopped:
            turn += 1
            answer = Answer(time.monotonic(), f"{self._block}-{user}-{turn}")
            self.answers.append(answer)
            try:
                await self._ask(client, answer, self._tokens * (user + 1) // self._count)
            except httpx.HTTPError as error:
                answer.error = repr(error)

    async def _ask(self, client: httpx.AsyncClient, answer: Answer, tokens: int) -> None:
        body = {
            "model": "policy",
            "messages": [{"role": "user", "content": _TEXT * 4 + answer.session}],
            "stream": True,
            "max_tokens": tokens,
            "temperature": 1.0,
            "ignore_eos": True,
        }
        headers = {"x-session-id": answer.session}
        async with client.stream("POST", CHAT, json=body, headers=headers) as reply:
            if reply.status_code != 200:
                answer.error = f"{reply.status_code}: {(await reply.aread())[:200]!r}"
                return
            stated = reply.headers.get("x-policy-version")
            answer.version = int(stated) if stated is not None else None
            async for line in reply.aiter_lines():
                _take(answer, line)


def first_token(users: Users, version: int, since: float = 0.0) -> float:
    """When a user who asked after `since` first saw a token of a version; 0 where none has."""
    times = [a.chunks[0] for a in users.answers if a.version == version and a.chunks and a.sent >= since]
    return min(times, default=0.0)


def _take(answer: Answer, line: str) -> None:
    if line == "data: [DONE]":
        answer.done = True
    elif line.startswith("data: "):
        event = orjson.loads(line[6:])
        if "error" in event:
            answer.error = str(event["error"])[:200]
        for choice in event.get("choices") or ():
            answer.finish = choice.get("finish_reason") or answer.finish
            answer.chunks.append(time.monotonic())
