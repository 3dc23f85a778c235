"""What the gateway costs beside other gateways: CPU a request and a stream, added time, memory, turns lost.

All stand before one fake upstream in one run, in turns. `--quick` is the short form; `--long` sends 100,000
requests and holds 1,000 slow streams, and shows whether CPU and memory stay flat.
"""

import argparse
import contextlib
import json
import math
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench import installed
from bench.relaying import dukou, long, replies
from bench.relaying.measure import Load, ToolError, compiled, cpu_seconds, load, memory_mb
from bench.relaying.peers import Process, free_port, peer, start

OURS = ("dukou_plain", "dukou")
PEERS = ("nginx", "sglang_router", "litellm", "fastapi_httpx")
SLOW = {"litellm": 20, "fastapi_httpx": 5}  # by how much fewer requests they get
PACE_MS = 10  # between a stream's events
BUSY = 32  # the concurrency at which CPU and added times are taken
CONCURRENCIES = (1, BUSY, 256)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is sent."""

    rounds: int
    requests: int  # a round and gateway
    streams: int


FULL, QUICK = Size(5, 3000, 96), Size(2, 1000, 64)


@dataclass(slots=True)
class Measured:
    """One gateway's figures, an entry a round."""

    cpu_ms: list[float] = field(default_factory=list)
    stream_cpu_ms: list[float] = field(default_factory=list)
    streams: list[Load] = field(default_factory=list)
    per_second: dict[int, float] = field(default_factory=dict)
    peak_mb: float = 0.0


@dataclass(slots=True)
class Bench:
    """The generator, the upstream, and everything that stands between them."""

    generator: Path
    bodies: dict[str, Path]
    gateways: dict[str, Process]
    results: dict[str, Measured]
    sent: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)

    def send(self, name: str, kind: str, concurrency: int, requests: int) -> tuple[Load, float]:
        """One load through a gateway; with its CPU milliseconds a request."""
        gateway = self.gateways[name]
        events = 0 if kind == "whole" else replies.EVENTS
        spread = 0 if kind == "whole" else replies.TOKENS * PACE_MS  # the length of a stream
        before = cpu_seconds(gateway.pid)
        done = load(self.generator, gateway.port, self.bodies[kind], concurrency, requests, events, spread)
        used = 1000 * (cpu_seconds(gateway.pid) - before) / requests
        self.sent[name] = self.sent.get(name, 0) + requests
        self.errors[name] = self.errors.get(name, 0) + done.errors
        if done.errors:
            print(f"{name}: {done.errors} of {requests} failed: {done.first_error}", file=sys.stderr)
        return done, used


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--long", action="store_true", help="Dukou alone, for long")
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated; may be empty")
    asked = parser.parse_args()
    folder = installed().bench
    try:
        result = run(folder, asked)
    except ToolError as error:
        print(error, file=sys.stderr)
        return 1
    if asked.json:
        print(json.dumps(result))
    return 0


def run(folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Starts everything, measures, and stops it again. Raises ToolError."""
    tools = folder / "gateway-tools"
    generator, program = compiled("load", tools), compiled("upstream", tools)
    replies.write(tools / "replies")
    port = free_port()
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(dukou.postgres(folder / "gateway-state"))
        upstream = start("upstream", [str(program), str(port), str(tools / "replies")], port, tools)
        gateways = {"direct": stack.enter_context(upstream)}
        ours = {}
        for name, dialect in (("dukou_plain", "plain"), ("dukou", "sglang")):
            state = folder / "gateway-state" / name
            ours[name] = stack.enter_context(dukou.dukou(name, port, url, state, dialect))
            gateways[name] = ours[name].worker
        for name in [name for name in asked.peers.split(",") if name and not asked.long]:
            started = peer(name, port, folder)
            if started is None:
                print(f"{name} is not installed here: left out", file=sys.stderr)
            else:
                gateways[name] = stack.enter_context(started)
        bench = Bench(generator, _bodies(tools), gateways, {name: Measured() for name in gateways})
        if asked.long:
            return long.run(partial(bench.send, "dukou"), ours["dukou"])
        return measure(bench, ours, QUICK if asked.quick else FULL)


def measure(bench: Bench, ours: dict[str, dukou.Dukou], size: Size) -> dict[str, Any]:
    """All rounds, and then the drain of what they left."""
    for name in bench.gateways:
        bench.send(name, "whole", BUSY, _fewer(name, 320))
    _drain(bench, ours)
    for _ in range(size.rounds):
        for name, result in bench.results.items():
            done, used = bench.send(name, "whole", BUSY, _fewer(name, size.requests))
            result.cpu_ms.append(used)
            result.per_second[BUSY] = max(done.per_second, result.per_second.get(BUSY, 0.0))
    drain = _drain(bench, ours)
    for _ in range(size.rounds):
        for name, result in bench.results.items():
            done, used = bench.send(name, "paced", BUSY, max(BUSY, _fewer(name, size.streams)))
            result.stream_cpu_ms.append(used)
            result.streams.append(done)
    stream_drain = _drain(bench, ours)
    for name, result in bench.results.items():
        for concurrency in CONCURRENCIES:
            if concurrency != BUSY:
                done, _ = bench.send(name, "whole", concurrency, _fewer(name, size.requests))
                result.per_second[concurrency] = done.per_second
        result.peak_mb = memory_mb(bench.gateways[name].pid)
    _drain(bench, ours)
    lost = _sent(bench, ours) - dukou.count(ours["dukou"].database)
    return report(bench, {"cpu_ms": drain, "stream_cpu_ms": stream_drain}, lost)


def _drain(bench: Bench, ours: dict[str, dukou.Dukou]) -> float:
    """Drains all that was sent; returns CPU milliseconds a turn of the drainer whose turns were captured."""
    plain, captured = ours["dukou_plain"], ours["dukou"]
    plain.drain(bench.sent["dukou_plain"] + captured.drained)
    used = captured.drain(_sent(bench, ours))
    turns, captured.drained = bench.sent["dukou"] - captured.drained, bench.sent["dukou"]
    return 1000 * used / turns


def report(bench: Bench, drain: dict[str, float], lost: int) -> dict[str, Any]:
    """The result; a table for people goes to stderr."""
    figures = {
        name: {"cpu_ms": median(one.cpu_ms), "stream_cpu_ms": median(one.stream_cpu_ms)}
        for name, one in bench.results.items()
    }
    _print_table(bench, figures)
    print(f"{'dukou_drain':14} {drain['cpu_ms']:8.3f} {drain['stream_cpu_ms']:8.2f}", file=sys.stderr)
    result: dict[str, Any] = {
        key: {name: round(figures[name][key], 4) if name in figures else None for name in (*OURS, *PEERS)}
        | {"dukou_drain": round(drain[key], 4)}
        for key in ("cpu_ms", "stream_cpu_ms")
    }
    streams, direct = bench.results["dukou"].streams, bench.results["direct"].streams
    added = {q: round(_added(streams, direct, f"first_{q}"), 3) for q in ("p50", "p99")}
    errors = sum(bench.errors[name] for name in OURS)
    return result | {"added_ttft_ms": added, "lost": lost, "errors": errors}


def _print_table(bench: Bench, figures: dict[str, dict[str, float]]) -> None:
    head = f"{'':14} {'CPU ms':>8} {'stream':>8} {'first token +ms':>16} {'last byte +ms':>16} "
    print(head + "  ".join(f"{c:>6}/s" for c in CONCURRENCIES) + "  peak MB", file=sys.stderr)
    quantiles = ("first_p50", "first_p99", "last_p50", "last_p99")
    direct = bench.results["direct"].streams
    for name, one in bench.results.items():
        times = [_added(one.streams, direct, at) for at in quantiles]
        row = f"{name:14} {figures[name]['cpu_ms']:8.3f} {figures[name]['stream_cpu_ms']:8.2f} "
        row += f"{times[0]:7.2f} {times[1]:8.2f} {times[2]:7.2f} {times[3]:8.2f} "
        row += "  ".join(f"{one.per_second[c]:8.0f}" for c in CONCURRENCIES) + f"  {one.peak_mb:7.0f}"
        print(row, file=sys.stderr)


def _added(loads: list[Load], direct: list[Load], what: str) -> float:
    """Milliseconds more than without a gateway, of the median round."""
    return float(median(getattr(one, what) for one in loads) - median(getattr(one, what) for one in direct))


def _sent(bench: Bench, ours: dict[str, dukou.Dukou]) -> int:
    return sum(bench.sent[name] for name in ours)


def _fewer(name: str, requests: int) -> int:
    return math.ceil(requests / SLOW.get(name, 1))


def _bodies(tools: Path) -> dict[str, Path]:
    made = {
        "whole": replies.request(stream=False),
        "paced": replies.request(stream=True, pace_ms=PACE_MS),
        "slow": replies.request(stream=True, pace_ms=1000),
    }
    for name, body in made.items():
        (tools / f"{name}.json").write_bytes(body)
    return {name: tools / f"{name}.json" for name in made}


if __name__ == "__main__":
    sys.exit(main())
