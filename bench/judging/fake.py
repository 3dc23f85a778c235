"""A fake judge in a process of its own: realistic latency, and faults where they are asked for.

`python -m bench.judging.fake LATENCY FAULTS` prints its port, then one line of JSON for every request that
it gets on `GET /counts`. A verdict is counted as paid when it has been sent in full.
"""

import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

SPREAD = 0.5  # a reply takes latency ± this share of it, evenly
SLOW = 3.0  # a slow reply takes this many times as long


@dataclass
class Counts:
    requests: int = 0
    verdicts: int = 0  # replies that a judge's bill has and a vote can be made of
    faults: int = 0
    seconds: float = 0.0  # of all replies together
    most_at_once: int = 0
    at: list[float] = field(default_factory=list)  # when each verdict was sent, seconds since 1970


class FakeJudge:
    def __init__(self, latency: float, faults: float, seed: int = 1) -> None:
        self.latency, self.faults = latency, faults
        self.random = random.Random(seed)
        self.counts = Counts()
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = _length(head)
                await reader.readexactly(length)
                if head.startswith(b"GET"):
                    writer.write(_reply(200, asdict(self.counts)))
                else:
                    await self.answer(writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the scorer was killed, or has what it wanted
        finally:
            writer.close()

    async def answer(self, writer: asyncio.StreamWriter) -> None:
        counts = self.counts
        counts.requests += 1
        self.open += 1
        counts.most_at_once = max(counts.most_at_once, self.open)
        seconds = self.latency * self.random.uniform(1 - SPREAD, 1 + SPREAD)
        kind = (
            self.random.choice(("error", "slow", "garbage")) if self.random.random() < self.faults else "ok"
        )
        seconds *= SLOW if kind == "slow" else 1
        counts.seconds += seconds
        await asyncio.sleep(seconds)
        self.open -= 1
        if kind == "error":
            counts.faults += 1
            writer.write(_reply(500, {"error": {"message": "no", "type": "server_error"}}))
        elif kind == "garbage":
            counts.faults += 1
            writer.write(_reply(200, _completion("I would say that it was rather good.")))
        else:
            writer.write(_reply(200, _completion('{"reason": "because", "score": 1, "hint": ""}')))
            await writer.drain()
            counts.verdicts += 1
            counts.at.append(time.time())


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def _completion(content: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 400, "completion_tokens": 20, "total_tokens": 420},
    }


def _reply(status: int, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def _main(latency: float, faults: float) -> None:
    judge = FakeJudge(latency, faults)
    server = await asyncio.start_server(judge.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(float(sys.argv[1]), float(sys.argv[2])))
