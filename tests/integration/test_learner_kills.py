"""G20 on the real process: kill -9 again and again under a steady stream of scored turns."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.fakes.replay import replayed
from tests.fakes.training import config, fill, make_policy, rows

ROOT = Path(__file__).parents[2]
KILLS, TURNS, PATIENCE = 10, 160, 240.0


def environment(settings, url):
    return {
        **os.environ,
        "DATABASE_URL": url,
        "DUKOU_STATE_DIR": str(settings.state_dir),
        "DUKOU_ENGINE_MODEL_PATH": settings.engine.model_path,
        "DUKOU_BATCH_ROLLOUT_BATCH_SIZE": "4",
        "DUKOU_BATCH_MAX_STALENESS": "1000",
        "DUKOU_BATCH_POLL_INTERVAL": "0.05",
        "DUKOU_TRAINER_DEVICE": "cpu",
        "DUKOU_TRAINER_LORA_RANK": "4",
        "DUKOU_GUARD_MAX_KL": "0",
    }


def start(env):
    return subprocess.Popen(
        [sys.executable, "-m", "learner"],
        cwd=ROOT,
        env=env,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_for_steps(db, count):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        [(steps,)] = rows(db, "select count(*) from steps")
        if steps >= count:
            return
        time.sleep(0.02)
    pytest.fail(f"fewer than {count} steps after {PATIENCE:.0f} s")


@pytest.mark.slow
def test_ten_kills_under_a_stream_of_turns_lose_none_and_train_none_twice(db, database_url, tmp_path):
    settings = config(tmp_path)
    policy = make_policy(db, settings)
    stream_ends = threading.Event()

    def stream():
        for number in range(TURNS):
            fill(db, policy, range(number, number + 1))
            stream_ends.wait(0.2)

    filling = threading.Thread(target=stream)
    filling.start()
    env, chance = environment(settings, database_url), random.Random(0)
    try:
        for kill in range(1, KILLS + 1):
            process = start(env)
            wait_for_steps(db, kill)
            time.sleep(chance.random() * 0.5)  # somewhere inside the steps that follow
            process.send_signal(signal.SIGKILL)
            process.wait()
    finally:
        stream_ends.set()
        filling.join()
    process = start(env)
    try:
        wait_for_steps(db, TURNS // 4)
    finally:
        process.kill()
        process.wait()
    counts = "select count(*), count(distinct turn_id) from samples join steps using (batch_id)"
    assert rows(db, counts) == [(TURNS, TURNS)]
    assert rows(db, "select stage, count(*) from turn_states group by stage") == [("trained", TURNS)]
    newest = settings.state_dir / "checkpoints" / "default" / str(TURNS // 4) / "masters.safetensors"
    masters = load_file(newest)
    again = replayed(db, settings)
    assert all(torch.equal(masters[name], again[name]) for name in again)
