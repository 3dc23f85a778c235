"""Clients as people have them: each in an environment of its own, running its own examples unmodified.

The openai client's are cut out of the README that it installs. The rest are in tests/acceptance/clients.
Two environment variables are all that is changed; the gateway serves under the name that the examples use.
"""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from dukou.local.engine.__main__ import say
from dukou.local.engine.models import TINY_MODEL
from dukou.local.engine.start import start, stop
from dukou.settings.model import Config
from dukou.settings.paths import StatePaths
from tests.acceptance.conftest import RealEngine
from tests.acceptance.through import config_for, drained
from tests.fakes.gateway import running

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ENVIRONMENTS = {
    "openai": ["openai"],
    "openai-1.40": ["openai==1.40.0", "httpx<0.28"],
    "langchain": ["langchain", "langchain-openai"],
    "pydantic-ai": ["pydantic-ai-slim[openai]"],
}
EXAMPLES = Path(__file__).parent / "clients"
#: What a block of the README says that needs another service, or that a random model takes minutes for.
ELSEWHERE = re.compile(r"workload_identity|Aio|json_object|httpx\d?\.Timeout|^with client", re.MULTILINE)


def python_of(paths: StatePaths, name: str) -> Path:
    """The environment's Python; made when it is not there yet."""
    folder = paths.root / "bench" / "clients" / name
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *ENVIRONMENTS[name]], check=True)
    return python


def readme_of(python: Path) -> list[str]:
    """The chat examples of the openai client's README, as they stand there."""
    (metadata,) = python.parents[1].glob("lib/python*/site-packages/openai-*.dist-info/METADATA")
    blocks = re.findall(r"```python\n(.*?)```", metadata.read_text(), re.DOTALL)
    return [block for block in blocks if "chat.completions.create(" in block and stands_alone(block)]


def stands_alone(block: str) -> bool:
    """Whether a block is a program: some go on from the block before them."""
    lacks_import = "asyncio.run" in block and "import asyncio" not in block
    awaits = re.search(r"^    completion = await", block, re.MULTILINE) and "async def" not in block
    return not (ELSEWHERE.search(block) or lacks_import or awaits)


@pytest.fixture(scope="module")
def engine(installed: StatePaths, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """An engine with a short context: the examples set no limit, and a random model knows no end."""
    state = tmp_path_factory.mktemp("clients-engine")
    (state / "engine").symlink_to(installed.engine_env.resolve())
    model = installed.models.resolve() / TINY_MODEL
    settings: dict[str, Any] = {
        "urls": ["http://127.0.0.1:31611"],
        "model_path": str(model),
        "extra_args": ["--context-length", "512"],
    }
    config = Config.model_validate({"state_dir": state, "engine": settings})
    process = start(config, say)
    try:
        yield RealEngine(config, model)
    finally:
        stop(process)


async def turns_of(
    engine: RealEngine, python: Path, program: str, state: Path, db: Engine
) -> list[dict[str, Any]]:
    """Runs a program against a gateway of its own; what it leaves in the table."""
    (name,) = set(re.findall(r"(?:gpt-[\w.-]+)", program))
    async with running(config_for(engine, state, served_name=name)) as gateway:
        environ = {**os.environ, "OPENAI_BASE_URL": f"{gateway.url}/v1", "OPENAI_API_KEY": "any"}
        process = await asyncio.create_subprocess_exec(
            python, "-c", program, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()[-3000:]
    return await asyncio.to_thread(drained, state, db)


def is_whole(turn: dict[str, Any]) -> bool:
    ids, logprobs = turn["response_ids"], turn["response_logprobs"]
    return turn["status"] == "ok" and bool(len(turn["prompt_ids"])) and 0 < len(ids) == len(logprobs)


@pytest.mark.parametrize("name", ["openai", "openai-1.40"])
async def test_the_openai_clients_readme_runs(
    engine: RealEngine, installed: StatePaths, name: str, tmp_path: Path, db: Engine
) -> None:
    """S6: also the oldest client that is in wide use."""
    python = await asyncio.to_thread(python_of, installed, name)
    programs = readme_of(python)
    assert programs
    for number, program in enumerate(programs):
        turns = await turns_of(engine, python, program, tmp_path / str(number), db)
        assert len(turns) == number + 1
        assert all(is_whole(turn) and turn["kind"] == "main" for turn in turns)


@pytest.mark.parametrize(("name", "count"), [("langchain", 5), ("pydantic-ai", 3)])
async def test_an_agents_examples_run(
    engine: RealEngine, installed: StatePaths, name: str, count: int, tmp_path: Path, db: Engine
) -> None:
    python = await asyncio.to_thread(python_of, installed, name)
    program = (EXAMPLES / f"{name.replace('-', '_')}_examples.py").read_text()
    turns = await turns_of(engine, python, program, tmp_path, db)
    assert len(turns) >= count
    assert all(is_whole(turn) for turn in turns)
