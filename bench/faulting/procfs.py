"""Linux's own books: a process's children, and whose connections it holds."""

import contextlib
import os
from pathlib import Path

_PROC = Path("/proc")
_STATES = ("01", "08")  # established, or closed by the peer only


def children_of(pid: int) -> dict[int, str]:
    """The direct children of a process, with their command lines."""
    found = {}
    for entry in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
    return found


def clients_of(pid: int, port: int) -> frozenset[int]:
    """The clients' own ports of the connections that a process has accepted on `port`."""
    inodes = set()
    for link in (_PROC / str(pid) / "fd").iterdir():
        with contextlib.suppress(OSError):
            name = os.readlink(link)
            if name.startswith("socket:["):
                inodes.add(name[8:-1])
    peers = set()
    for line in (_PROC / "net" / "tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[9] in inodes and fields[3] in _STATES and _port(fields[1]) == port:
            peers.add(_port(fields[2]))
    return frozenset(peers)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
