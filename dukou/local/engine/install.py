"""SGLang's own Python environment: `<state>/engine`, apart from Dukou's, whose pins disagree with SGLang's.

With a GPU it is the ordinary package. Without one, no CUDA package is needed: what a CPU imports comes from
`cpu/requirements.lock`, and `cpu/shim` mends what is left. A stamp with a digest of all this is
written last, so that an install that was cut short or has other requirements is done again.
"""

import hashlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

from dukou.errors import DukouError

SGLANG = "sglang==0.5.23"
TORCH = "torch==2.13.0"
_CPU = Path(__file__).parent / "cpu"
_LOCK = _CPU / "requirements.lock"
_SHIM = _CPU / "shim"
_STAMP = "dukou-installed"

Say = Callable[[str], None]


class InstallError(DukouError):
    """The engine's environment could not be made; the message ends with what pip said last."""


def has_gpu() -> bool:
    """Whether `nvidia-smi` is there and answers."""
    tool = shutil.which("nvidia-smi")
    return tool is not None and subprocess.run([tool, "-L"], capture_output=True).returncode == 0


def multiplies_bfloat16(env: Path) -> bool:
    """Whether this CPU has instructions for bfloat16 that the engine's torch uses (AVX-512, AMX, Arm's).

    Without them a product of bfloat16 takes many times as long as one of float32.
    """
    question = "import torch; raise SystemExit(not torch.ops.mkldnn._is_mkldnn_bf16_supported())"
    return subprocess.run([str(python(env)), "-c", question], capture_output=True).returncode == 0


def python(env: Path) -> Path:
    return env / "bin" / "python"


def is_installed(env: Path) -> bool:
    stamp = env / _STAMP
    return stamp.is_file() and stamp.read_text() == _digest(gpu=has_gpu())


def install(env: Path, say: Say) -> None:
    """Makes the environment; returns at once where it is there already. Raises InstallError."""
    if is_installed(env):
        say(f"engine: {SGLANG} is installed in {env}")
        return
    gpu = has_gpu()
    say(f"engine: installing {SGLANG} for {'a GPU' if gpu else 'the CPU'} into {env} (minutes, some GB)")
    venv.create(env, clear=True, with_pip=True)
    for words, arguments in _steps(gpu=gpu):
        say(f"engine: {words}")
        _pip(env, arguments)
    if not gpu:
        shutil.copytree(_SHIM, _site_packages(env), dirs_exist_ok=True)
    say("engine: trying its import")
    _run([str(python(env)), "-c", "import sglang.srt.server_args"])
    (env / _STAMP).write_text(_digest(gpu=gpu))
    say("engine: installed")


def _steps(*, gpu: bool) -> Iterator[tuple[str, list[str]]]:
    if gpu:
        yield SGLANG, [SGLANG]
        return
    yield TORCH, [TORCH]
    yield "what a CPU needs of SGLang", ["--no-deps", "--require-hashes", "-r", str(_LOCK)]


def _digest(*, gpu: bool) -> str:
    digest = hashlib.sha256(f"{SGLANG} {sys.version_info[:2]} gpu={gpu}".encode())
    if not gpu:
        digest.update(TORCH.encode() + _LOCK.read_bytes())
        for file in sorted(path for path in _SHIM.rglob("*") if path.suffix in (".py", ".pth")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _site_packages(env: Path) -> Path:
    return env / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def _pip(env: Path, arguments: list[str]) -> None:
    _run([str(python(env)), "-m", "pip", "install", "--quiet", *arguments])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.strip() and "WARNING" not in line]
        raise InstallError("\n".join([f"`{' '.join(command[1:])}` failed:", *errors[-8:]]))
