"""A stand-in for an engine that answers good questions well, and everything else with hostile bytes.

`python -m bench.hostility.engine FILE` takes the bytes from a file that `save` wrote.
"""

import asyncio
import base64
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.faulting.engine import Connection, serve

_STATUSES = (b"200 OK",) * 7 + (b"400 Bad Request",)


def save(path: Path, replies: Sequence[bytes]) -> None:
    path.write_text(json.dumps([base64.b64encode(reply).decode() for reply in replies]))


class HostileConnection(Connection):
    replies: Iterator[tuple[bytes, bytes]]  # status and body

    def _answer(self, path: str, body: bytes) -> None:
        if path != "/v1/chat/completions" or b"good question" in body:
            super()._answer(path, body)
            return
        status, reply = next(self.replies)
        kind = b"text/event-stream" if reply.startswith(b"data:") else b"application/json"
        self._write(
            b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (status, kind, len(reply), reply)
        )


if __name__ == "__main__":
    saved = [base64.b64decode(reply) for reply in json.loads(Path(sys.argv[1]).read_text())]
    HostileConnection.replies = zip(itertools.cycle(_STATUSES), itertools.cycle(saved), strict=False)
    try:
        asyncio.run(serve(HostileConnection))
    except KeyboardInterrupt:
        sys.exit(0)
