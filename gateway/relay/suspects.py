"""Keeps a request that kills engines from killing all of them.

**What a death is**: an engine closed the connection of a request that it had got, before the answer was
whole, and is then not there: it takes no new connection, or closes that one too without a word
(`Pool.is_gone`). A close by an engine that lives is none, and neither is a kept connection that closed for
being idle.

**Who is suspected**: every body that was in flight on the engine. Each turn that lost its connection by a
death says so by itself, in a file that all workers of this state folder read and write: `deaths.jsonl`, see
`gateway/relay/deaths.py`. A digest is of the path and the client's own bytes.

**What follows**: one death is a suspicion, and most who are suspected are innocent: they ran beside the one
that killed. So a suspect is sent alone: at most one suspect at a time to an engine, from all workers
together, until its answer begins. If the engine dies again, only one body was there before its answer began
at two deaths. From then on that one is refused, without being sent, until one of its deaths is ten minutes
old. Whose answer comes is cleared. So an innocent body is refused only where a second engine dies of
something else: while it is the one suspect there, or in the middle of its answer as at the first death.
"""

import asyncio
import contextlib
import fcntl
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

from gateway.relay.deaths import KILLS, Answer, Death, Ledger, cleared_line, death_line
from gateway.relay.errors import NoEngineError, RequestKillsEnginesError

logger = logging.getLogger(__name__)

_LARGEST = 2**20  # bytes of the file, above which what no longer counts is taken out
_LOOK_SECONDS = 0.02  # between looks at the file
_TURN_SECONDS = 0.01  # between two tries to be the one suspect on an engine
_WAIT_SECONDS = 60.0  # for that; as long as a request is held for an engine


class Suspects:
    """One worker's view of the file, and its own lines in it."""

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = time.time,
        *,
        largest: int = _LARGEST,
        wait_seconds: float = _WAIT_SECONDS,
    ) -> None:
        self.file = folder / "deaths.jsonl"
        self._folder = folder
        self._clock = clock
        self._largest = largest
        self.wait_seconds = wait_seconds
        self._ledger = Ledger()
        self._stamp: tuple[int, int, int] | None = None
        self._read_to = 0
        self._look_at = -math.inf

    def watch(self, path: str, body: bytes) -> "Watch":
        """A request, from its arrival to its end."""
        return Watch(self, path, body)

    def deaths(self, path: str, body: bytes) -> int:
        """At how many deaths a body was in flight; nothing is computed while no death is remembered."""
        self._look()
        now = self._clock()
        return 0 if self._ledger.is_empty(now) else self._ledger.count(digest(path, body), now)

    def died(self, path: str, body: bytes, engine: str, *, begun: bool) -> None:
        """`engine` died with this body in flight."""
        self._append(death_line(digest(path, body), Death(engine, self._clock(), begun)))

    def clear(self, path: str, body: bytes, answer: Answer) -> None:
        self._append(cleared_line(digest(path, body), answer))

    @contextlib.contextmanager
    def place(self, engine: str) -> Iterator[bool]:
        """Whether this is now the one suspect on an engine; it is until the block ends.

        Where the folder cannot be written there are no places, and all may go.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = (self._folder / f"{sha256(engine.encode()).hexdigest()[:16]}.lock").open("w")
        except OSError:
            yield True
            return
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
            else:
                yield True

    def _look(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if now < self._look_at and not at_once:
            return
        self._look_at = now + _LOOK_SECONDS
        try:
            stat = self.file.stat()
            stamp = stat.st_ino, stat.st_size, stat.st_mtime_ns
            if stamp == self._stamp:
                return
            if self._stamp is None or stamp[0] != self._stamp[0] or stamp[1] < self._read_to:
                self._ledger, self._read_to = Ledger(), 0  # another file
            self._read_on()
            self._stamp = stamp
        except FileNotFoundError:
            if self._stamp is not None:
                self._ledger, self._read_to, self._stamp = Ledger(), 0, None
        except OSError:
            return  # what was known is still known

    def _read_on(self) -> None:
        with self.file.open("rb") as file:
            file.seek(self._read_to)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._ledger.read(data[:whole])
        self._read_to += whole

    def _append(self, line: bytes) -> None:
        """Adds a line that every worker reads. A disk that takes none costs only what the others know."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # for microseconds: nothing is awaited under it
                self._look(at_once=True)
                if self._read_to > self._largest:
                    self._shrink()
                with self.file.open("ab", buffering=0) as file:
                    file.write(b"\n" + line)  # half a line that a full disk left ends here
                self._look(at_once=True)
        except OSError as error:
            logger.warning("a death of an engine is known to this worker alone: %s", error)
            self._ledger.read(line)

    def _shrink(self) -> None:
        """Keeps what still counts, in half the space."""
        draft = self.file.with_suffix(".new")
        draft.write_bytes(b"".join(self._ledger.lines(self._clock(), self._largest // 2)))
        os.replace(draft, self.file)


class Watch:
    """One request under the eyes of `Suspects`."""

    def __init__(self, suspects: Suspects, path: str, body: bytes) -> None:
        self._suspects = suspects
        self._of = path, body
        self._place = contextlib.ExitStack()
        self._suspected = False

    def check(self) -> int:
        """At how many deaths this body was in flight.

        Raises:
            RequestKillsEnginesError: too many.
        """
        deaths = self._suspects.deaths(*self._of)
        if deaths >= KILLS:
            raise RequestKillsEnginesError(
                f"{deaths} engines died while they worked on this very request: it is not sent again for ten "
                "minutes. Change it: another prompt, fewer unusual parameters. If it should work, report the "
                "engine's log to whoever runs this service."
            )
        return deaths

    async def admitted(self, engine: str) -> None:
        """Returns when this request may be sent to an engine: at once, or when it is a suspect's turn.

        Raises:
            RequestKillsEnginesError: it has been at a second death meanwhile.
            NoEngineError: its turn did not come in time.
        """
        deadline = time.monotonic() + self._suspects.wait_seconds
        while self.check() > 0:
            self._suspected = True
            if self._place.enter_context(self._suspects.place(engine)):
                return
            self._place.close()
            if time.monotonic() >= deadline:
                raise NoEngineError(
                    "an engine died while this request ran, and others that ran then are tried before it, "
                    "one at a time: try again soon",
                    headers=((b"retry-after", b"5"),),
                )
            await asyncio.sleep(_TURN_SECONDS)

    def begun(self) -> None:
        """Bytes of an answer have come: the next suspect may go."""
        if self._suspected:
            self._place.close()
            self._suspects.clear(*self._of, "begun")

    def whole(self) -> None:
        """The answer was whole."""
        if self._suspected or self._suspects.deaths(*self._of):
            self._suspects.clear(*self._of, "whole")

    def died(self, engine: str, *, begun: bool) -> None:
        """The engine died before the answer was whole."""
        self._suspects.died(*self._of, engine, begun=begun)

    def leave(self) -> None:
        """This try is over, however it ended."""
        self._place.close()


def digest(path: str, body: bytes) -> str:
    """What a client sent, as 32 hex digits."""
    return sha256(path.encode() + b"\0" + body).hexdigest()[:32]
