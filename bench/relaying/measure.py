"""What the gateway benchmark measures: CPU and memory of processes from /proc, and a load's times."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class ToolError(Exception):
    """A tool of the benchmark is missing or failed; the message says what would mend it."""


@dataclass(frozen=True, slots=True)
class Load:
    """One run of the load generator; times in milliseconds."""

    requests: int
    errors: int
    per_second: float
    first_p50: float
    first_p99: float
    last_p50: float
    last_p99: float
    first_error: str


def compiled(name: str, folder: Path) -> Path:
    """The program bench/<name>.c, compiled. Raises ToolError."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise ToolError("a C compiler is needed for the load generator: install gcc or clang")
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True)
    return program


def load(
    program: Path, port: int, body: Path, concurrency: int, requests: int, events: int, spread_ms: int
) -> Load:
    """Sends `requests`, at most `concurrency` at once. Raises ToolError where the generator gives up."""
    numbers = (concurrency, requests, events, spread_ms)
    command = [str(program), str(port), str(body), *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolError(f"the load on port {port} failed: {done.stderr.strip()}")
    return Load(**json.loads(done.stdout))


def tree(pid: int) -> list[int]:
    """A process and all that it started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(found for child in children for found in tree(int(child)))]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and all that it started."""
    return sum(_cpu_of(member) for member in tree(pid))


def _cpu_of(pid: int) -> float:
    """In nanoseconds where the kernel keeps them for every living thread, else in ticks."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except (OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mb(pid: int, field: str = "VmHWM") -> float:
    """Peak (or, with VmRSS, present) memory of a process and all that it started."""
    total = 0
    for member in tree(pid):
        lines = Path(f"/proc/{member}/status").read_text().splitlines()
        total += next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), 0)
    return total / 1024
