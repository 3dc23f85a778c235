"""One real SGLang for the session: installed, given its models and started by Dukou's own code.

`DUKOU_TEST_STATE` names a state folder that is kept between runs; without it `.dukou` is used, so that what
`make engine` installed is not installed twice.
"""

import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dukou.local.engine import install as engine_install
from dukou.local.engine import models as engine_models
from dukou.local.engine.__main__ import say
from dukou.local.engine.models import TINY_MODEL
from dukou.local.engine.start import start, stop
from dukou.settings.model import Config
from dukou.settings.paths import StatePaths

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class RealEngine:
    config: Config
    model: Path
    pid: int

    @property
    def url(self) -> str:
        return self.config.engine.urls[0]


@pytest.fixture(scope="session")
def installed() -> StatePaths:
    paths = StatePaths(Path(os.environ.get("DUKOU_TEST_STATE", _ROOT / ".dukou")))
    engine_install.install(paths.engine_env, say)
    engine_models.make(paths.engine_env, paths.models, say)
    return paths


@pytest.fixture(scope="session")
def real_engine(installed: StatePaths, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """The tiny model, ready, at version 0, in a state folder of its own."""
    with _serving(installed, tmp_path_factory.mktemp("engine-state")) as engine:
        yield engine


@pytest.fixture(scope="module")
def lora_engine(installed: StatePaths, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """The same with LoRA, for as long as one file of tests needs it."""
    trainer = {"lora_rank": 8, "lora_targets": ["q_proj", "v_proj", "o_proj"]}
    state = tmp_path_factory.mktemp("lora-state")
    # Two adapters of the tiny model differ by 0.17 nats: the default tolerance would not tell them apart.
    publish = {"form": "adapter", "probe_tolerance": 0.05}
    with _serving(installed, state, publish=publish, trainer=trainer) as engine:
        yield engine


@contextmanager
def _serving(installed: StatePaths, state: Path, **settings: Any) -> Iterator[RealEngine]:
    config = configured(installed, state, **settings)
    process = start(config, say)
    try:
        yield RealEngine(config, Path(config.engine.model_path), process.pid)
    finally:
        stop(process)


def configured(
    installed: StatePaths,
    state: Path,
    extra_args: Sequence[str] = (),
    *,
    model: str = TINY_MODEL,
    **settings: Any,
) -> Config:
    """For an engine of its own, at a free port. In bfloat16 on every CPU: what is compared byte for byte and
    by checksums is rounded alike."""
    (state / "engine").symlink_to(installed.engine_env.resolve())
    url = f"http://127.0.0.1:{_free_port()}"
    path = installed.models.resolve() / model
    engine = {"urls": [url], "model_path": str(path), "extra_args": ["--dtype", "bfloat16", *extra_args]}
    return Config.model_validate({"state_dir": state, "engine": engine, **settings})


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Path]:
    """Where a test writes checkpoints; removed at once, as they are copies of a model."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)
