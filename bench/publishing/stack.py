"""A real engine, a gateway before it and an embedded Postgres, in a state folder that goes afterwards."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import Engine

from bench import installed
from bench.faulting.procfs import children_of
from bench.publishing.plant import MODULES, RANK, Plant
from dukou.local.engine.__main__ import say
from dukou.local.engine.start import start, stop
from dukou.settings.load import load_config
from dukou.settings.model import Config
from dukou.settings.paths import StatePaths
from dukou.store import database, embedded, policies, publishing, versions
from dukou.store.versions import Form, NewVersion
from gateway.reconcile.decide import label_version
from gateway.reconcile.sglang import Control

_READY_SECONDS = 120.0


def plant_of(version: int) -> int:
    """Which of two plants a version is a copy of."""
    return (version - 1) % 2


class Stack:
    """`form` says how the engine is started: for full weights, or with LoRA."""

    def __init__(self, state: Path, model: str, form: Form) -> None:
        (state / "engine").symlink_to(installed().engine_env.resolve())
        self.base = installed().models.resolve() / model
        self.form = form
        settings = _settings(state, self.base, form)
        self.file = state / "config.toml"
        self.file.write_text(_toml(settings))
        self.config: Config = load_config(self.file)
        self.paths = StatePaths.for_config(self.config)
        database.upgrade(database.url(self.config))
        self.db: Engine = database.engine(self.config)
        with self.db.begin() as connection:
            self.policy = policies.default(connection, self.config).id
        self._engine = start(self.config, say)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.config.gateway.port}"

    @property
    def engine_url(self) -> str:
        return self.config.engine.urls[0]

    def begin(self, verb: str) -> None:
        """`serve`, `drain` or `reconcile`: one part of the gateway."""
        log = (self.paths.root / f"{verb}.log").open("ab")
        command = [sys.executable, "-m", "gateway", verb, "--config", str(self.file)]
        self._running[verb] = subprocess.Popen(command, stdout=log, stderr=log)

    def end(self, verb: str) -> None:
        process = self._running.pop(verb, None)
        if process is not None:
            process.send_signal(signal.SIGTERM)
            process.wait(30)

    @contextmanager
    def asleep(self, verb: str) -> Iterator[None]:
        """A part that does nothing meanwhile, as it neither ends nor begins in between."""
        self._running[verb].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._running[verb].send_signal(signal.SIGCONT)

    def close(self) -> None:
        for verb in list(self._running):
            self.end(verb)
        stop(self._engine)
        self.db.dispose()
        embedded.stop(self.paths.root)

    def engine_bytes(self) -> int:
        """Resident memory of all of the engine's processes."""
        todo, total = [self._engine.pid], 0
        while todo:
            pid = todo.pop()
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            todo += children_of(pid)
        return total

    def publish(self, plants: Sequence[Plant]) -> int:
        """A version as a step leaves it, made live; returns its number."""
        with self.db.begin() as connection:
            number = versions.next_version(connection, self.policy)
        plant = plants[plant_of(number)]
        place = self.paths.versions(self.config.policy.name) / str(number)
        plant.copy_to(place)
        with self.db.begin() as connection:
            new = NewVersion(self.policy, number, 0, None, str(place.resolve()), self.form, plant.probe)
            versions.insert(connection, new)
            publishing.publish(connection, self.policy, number)
        return number

    def roll_back(self) -> int:
        """As `learner rollback` does; returns the version that is live again."""
        with self.db.begin() as connection:
            return publishing.rollback(connection, self.policy)

    def live(self) -> int:
        with self.db.connect() as connection:
            return publishing.pointers(connection, self.policy).live

    def drained(self) -> None:
        """Returns when every turn that was served is in Postgres."""
        self.end("serve")
        self.wait(lambda: not any(self.paths.spool.glob("*.seg")), "the drainer's end of the spool")

    def served(self) -> int | None:
        """The version that the engine is ready at, as the workers read it."""
        if not self.paths.routes_file.is_file():
            return None
        (engine,) = orjson.loads(self.paths.routes_file.read_bytes())["engines"]
        same = engine["version_low"] == engine["version_high"]
        return engine["version_low"] if engine["state"] == "ready" and same else None

    def settled(self) -> bool:
        """Whether the engine has the live version, and the workers know."""
        live = self.live()
        return self.served() == live and (self.form == "adapter" or self._label() == live)

    def _label(self) -> int | None:
        with Control(self.engine_url) as control:
            info = control.model_info()
        return label_version(info.weight_version) if info else None

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not happen; see {self.paths.root}")
            time.sleep(0.005)


def _settings(state: Path, base: Path, form: Form) -> dict[str, Any]:
    return {
        "state_dir": str(state),
        "engine": {"urls": [f"http://127.0.0.1:{_free()}"], "model_path": str(base)},
        "gateway": {"port": _free()},
        "trainer": {"lora_rank": RANK, "lora_targets": sorted(name.rpartition(".")[2] for name in MODULES)},
        "publish": {"form": form},
    }


def _toml(settings: dict[str, Any]) -> str:
    """JSON's strings, numbers and lists are TOML's too."""
    top = [f"{key} = {json.dumps(value)}" for key, value in settings.items() if not isinstance(value, dict)]
    for section, values in settings.items():
        if isinstance(values, dict):
            top += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(top)


def _free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
