"""Starting SGLang: its arguments and environment as values, then the process, then its readiness.

What an engine's log says about its death, in a sentence.
"""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from dukou.errors import DukouError
from dukou.local.engine.install import Say, has_gpu, multiplies_bfloat16, python
from dukou.local.engine.models import CHAT_MODEL
from dukou.settings.model import Config
from dukou.settings.paths import StatePaths

#: Tried in order; the last match of the first pattern that matches anywhere is the answer.
_CAUSES: Sequence[tuple[re.Pattern[str], str]] = [
    (re.compile(r"address already in use|\[Errno 98\]", re.I), "its port is taken by another process"),
    (
        re.compile(r"out of memory|Not enough memory|Cannot allocate memory|MemoryError", re.I),
        "it ran out of memory: lower --mem-fraction-static or --max-total-tokens (engine.extra_args)",
    ),
    (
        re.compile(r"(?:size mismatch|shape mismatch|The size of tensor|mat1 and mat2 shapes)[^\n]*", re.I),
        "weights of another shape were loaded: {}",
    ),
    (
        re.compile(r"[^\n]*(?:is not a valid model identifier|does not appear to have a file named"
                   r"|Repo id must|LocalEntryNotFoundError|No such file or directory: '[^'\n]*)[^\n]*"),
        "its model cannot be found: {}",
    ),
    (re.compile(r"error: (?:unrecognized arguments|argument )[^\n]*"), "it does not know an option: {}"),
    (re.compile(r"No module named '[^'\n]+'"), "its environment is incomplete ({}): run `make engine`"),
]  # fmt: skip
_EXCEPTION = re.compile(
    r"^(?:\[[^\]\n]*\] )?((?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit)\b[^\n]*)", re.M
)


def why_dead(log: str) -> str:
    """The meaningful last error of an engine's log: a known cause, the last exception, or the last line."""
    for pattern, sentence in _CAUSES:
        matches = list(pattern.finditer(log))
        if matches:
            return sentence.format(matches[-1][0].strip()[:300])
    exceptions = _EXCEPTION.findall(log)
    if exceptions:
        return str(exceptions[-1]).strip()[:300]
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"its last words were: {lines[-1][:300]}" if lines else "it said nothing"


START_SECONDS = 600.0
_TELL_EVERY = 10.0
_PR_SET_PDEATHSIG = 1
_CPU_TOKENS = 16384  # of KV cache
_ADAPTERS_AT_ONCE = 8  # live, old and pinned versions; the base model needs a place too


class EngineDiedError(DukouError):
    """The engine ended before it was ready; the message says why."""


def model_path(config: Config) -> Path:
    """The base model's folder: the configured one, else SmolLM2-135M-Instruct as `make engine` makes it."""
    if config.engine.model_path:
        return Path(config.engine.model_path)
    return StatePaths.for_config(config).models / CHAT_MODEL


def log_path(config: Config) -> Path:
    return StatePaths.for_config(config).logs / "engine.log"


def arguments(config: Config, model: Path, *, gpu: bool, bfloat16: bool = True) -> list[str]:
    """What follows `python` to serve `model` at the first of `engine.urls`. `bfloat16`: whether the device
    multiplies it."""
    address = urlsplit(config.engine.urls[0])
    given = ["-m", "sglang.launch_server", "--model-path", str(model)]
    given += ["--served-model-name", config.engine.served_name]
    given += ["--host", address.hostname or "127.0.0.1", "--port", str(address.port or 30000)]
    # A label tells which weights an engine has; a parser keeps log-probabilities from being lost; an idle
    # engine that spins would take a core from training.
    given += [
        "--weight-version",
        "0",
        "--tool-call-parser",
        config.engine.tool_call_parser,
        "--sampling-defaults",
        config.engine.sampling_defaults,
        "--sleep-on-idle",
    ]
    if not gpu:
        given += ["--device", "cpu", "--max-total-tokens", str(_CPU_TOKENS), "--skip-server-warmup"]
        given += [] if bfloat16 else ["--dtype", "float32"]
    if config.publish.form == "adapter":
        given += ["--enable-lora", "--max-lora-rank", str(config.trainer.lora_rank)]
        given += ["--max-loras-per-batch", str(_ADAPTERS_AT_ONCE)]
        given += ["--lora-target-modules", *config.trainer.lora_targets]
        given += [] if gpu else ["--lora-backend", "torch_native"]
    key = config.engine.api_key.get_secret_value()
    return [*given, *(["--api-key", key] if key else []), *config.engine.extra_args]


def environment(environ: Mapping[str, str], *, gpu: bool) -> dict[str, str]:
    """What the engine's process gets of ours.

    One thread on a CPU: two on a busy two-core machine make less than a token a second. Not the variable that
    puts a grammar over every answer with tools, which the engine tells nobody: such answers would be recorded
    as sampled freely.
    """
    cpu = {} if gpu else {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
    kept = {name: value for name, value in environ.items() if name != "SGLANG_TOOL_STRICT_LEVEL"}
    return {**kept, "HF_HUB_OFFLINE": "1", **cpu}


def launch(config: Config) -> subprocess.Popen[bytes]:
    """Starts the process and returns at once; its words go to `<state>/logs/engine.log`, written anew.

    Raises:
        EngineDiedError: its environment or its model is missing.
    """
    paths, gpu = StatePaths.for_config(config), has_gpu()
    model = model_path(config).absolute()  # whoever asks the engine for it may stand in another folder
    if not python(paths.engine_env).is_file():
        raise EngineDiedError(f"there is no engine in {paths.engine_env}: run `make engine`")
    if not (model / "config.json").is_file():
        raise EngineDiedError(f"there is no model in {model}: run `make engine`, or set engine.model_path")
    log = log_path(config)
    log.parent.mkdir(parents=True, exist_ok=True)
    bfloat16 = gpu or multiplies_bfloat16(paths.engine_env)
    with log.open("wb") as file:
        return subprocess.Popen(
            [str(python(paths.engine_env)), *arguments(config, model, gpu=gpu, bfloat16=bfloat16)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(os.environ, gpu=gpu),
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


def start(config: Config, say: Say) -> subprocess.Popen[bytes]:
    """Starts the engine and waits until it is ready. Raises EngineDiedError."""
    process = launch(config)
    with ExitStack() as undo:
        undo.callback(stop, process)
        wait_ready(process, config, say)
        undo.pop_all()
    return process


def wait_ready(process: subprocess.Popen[bytes], config: Config, say: Say) -> None:
    """Returns when the engine answers that it is ready; says now and then that it is not yet.

    Raises:
        EngineDiedError: the engine ended, or was not ready after ten minutes.
    """
    began = told = time.monotonic()
    with httpx.Client(base_url=config.engine.urls[0], timeout=5) as client:
        while not _is_ready(client):
            if process.poll() is not None:
                raise EngineDiedError(death(config, process.returncode))
            now = time.monotonic()
            if now - began > START_SECONDS:
                raise EngineDiedError(
                    f"the engine was not ready after {START_SECONDS:.0f} s; see {log_path(config)}"
                )
            if now - told >= _TELL_EVERY:
                told = now
                say(f"engine: still starting after {now - began:.0f} s (mostly imports; {log_path(config)})")
            time.sleep(0.3)
    say(f"engine: ready at {config.engine.urls[0]} after {time.monotonic() - began:.0f} s")


def stop(process: subprocess.Popen[bytes], seconds: float = 20) -> None:
    """SIGTERM stops all of SGLang's processes; SIGKILL is for one that hangs."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def death(config: Config, code: int | None) -> str:
    """Why the engine of this configuration is dead, from its log."""
    log = log_path(config)
    if code == -signal.SIGKILL:
        return (
            f"the engine was killed (SIGKILL): by somebody, or by the system when memory ran out (log: {log})"
        )
    said = why_dead(log.read_text(errors="replace")) if log.is_file() else "it has no log"
    return f"the engine ended with code {code}: {said} (log: {log})"


def _die_with_parent() -> None:
    """An engine whose starter was killed would hold its port against the next one."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False
