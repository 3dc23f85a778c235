"""The whole loop on real parts: openai client → gateway → SGLang → Postgres → learner → SGLang again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from openai import OpenAI
from sqlalchemy import Engine, text

from tests.acceptance.conftest import RealEngine

PORT = 31601
SETTINGS = """
state_dir = "{state}"
[database]
url = "{database}"
[gateway]
port = {port}
[engine]
urls = ["{engine}"]
model_path = "{model}"
[judge]
kind = "rules"
[batch]
rollout_batch_size = 8
poll_interval = 0.1
[trainer]
learning_rate = 1e-3
[publish]
poll_interval = 0.2
"""


@contextmanager
def running(module: str, settings: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    environ = {**os.environ, "DUKOU_CONFIG": str(settings)}
    with log.open("ab") as output:
        process = subprocess.Popen([sys.executable, "-m", module], stdout=output, stderr=output, env=environ)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def eventually(holds: Callable[[], bool], what: str, log: Path, tries: int = 900) -> None:
    for _ in range(tries):
        if holds():
            return
        time.sleep(0.1)
    pytest.fail(f"{what} did not come about; the log ends:\n{log.read_text()[-3000:]}")


def is_ready() -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{PORT}/readyz").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def talk(client: OpenAI, number: int) -> list[str]:
    """Two turns: a question, and what the user says to its answer; returns both answers."""
    messages = [{"role": "user", "content": f"Say something about number {number}."}]
    answers = []
    for reaction in ("Thank you, that is right." if number % 2 else "No, that is wrong.", None):
        chunks = client.chat.completions.create(
            model="policy", messages=messages, max_tokens=12, temperature=1.0, stream=True
        )
        answers.append("".join(c.choices[0].delta.content or "" for c in chunks if c.choices))
        messages += [
            {"role": "assistant", "content": answers[-1]},
            {"role": "user", "content": reaction or ""},
        ]
    return answers


@pytest.fixture
def settings(real_engine: RealEngine, database_url: str, tmp_path: Path) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(
        SETTINGS.format(
            state=tmp_path, database=database_url, port=PORT, engine=real_engine.url, model=real_engine.model
        )
    )
    return file


def test_what_users_say_becomes_a_version_that_the_real_engine_serves(
    settings: Path, real_engine: RealEngine, db: Engine, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    log = tmp_path / "parts.log"
    client = OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key="any", max_retries=8)

    def scalar(query: str) -> int:
        with db.connect() as connection:
            return int(connection.execute(text(query)).scalar_one() or 0)

    with running("gateway", settings, log):
        eventually(is_ready, "a ready gateway", log)
        heard = [answer for number in range(10) for answer in talk(client, number)]

    # The gateway is gone, and another one is killed right after its client's last byte: nothing is lost.
    with running("gateway", settings, log) as gateway:
        eventually(is_ready, "a second gateway", log)
        heard += talk(client, 10)
        gateway.send_signal(signal.SIGKILL)
        gateway.wait()
    eventually(lambda: not is_ready(), "the end of the killed gateway's workers", log)

    with running("gateway", settings, log), running("learner", settings, log) as learner:
        eventually(lambda: scalar("select count(*) from turn") == len(heard), "every turn in Postgres", log)
        eventually(lambda: scalar("select live_version from policies") >= 1, "a first version", log)
        learner.send_signal(signal.SIGKILL)
        eventually(
            lambda: scalar("select count(*) from publications where status = 'loaded' and version = 1") == 1,
            "version 1 on the engine, with the learner dead",
            log,
        )
        assert httpx.get(f"{real_engine.url}/model_info").json()["weight_version"] == "1"
        heard += talk(client, 11)
        eventually(lambda: scalar("select count(*) from turn") == len(heard), "the last turns", log)

    tokenizer = AutoTokenizer.from_pretrained(real_engine.model)
    with db.connect() as connection:
        rows = connection.execute(text("select * from turn order by started_at, id")).all()
        doubled = connection.execute(
            text("select count(*) - count(distinct turn_id) from samples")
        ).scalar_one()
    assert [row.response_text for row in rows] == heard
    for row in rows:
        assert row.status == "ok"
        assert len(row.response_ids) == len(row.response_logprobs) > 0
        assert tokenizer.decode(row.response_ids, skip_special_tokens=True) == row.response_text
    assert {row.policy_version_max for row in rows[:22]} == {0}
    assert {row.policy_version_min for row in rows[22:]} == {1}
    assert doubled == 0
