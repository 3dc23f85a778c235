"""A fake engine, and a world with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.fakes.sglang import FakeSGLang, fake_sglang
from tests.fakes.world import World


@pytest.fixture
def fake() -> Iterator[FakeSGLang]:
    with fake_sglang() as engine:
        yield engine


@pytest.fixture
def world(db: Engine, tmp_path: Path, fake: FakeSGLang) -> Iterator[World]:
    made = World(db, tmp_path, [fake])
    yield made
    made.close()
