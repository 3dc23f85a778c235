"""A policy of a random Llama and scored turns for it: what the learner finds in the tables."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine

from dukou.settings.learning import BatchSettings, TrainerSettings
from dukou.settings.model import Config
from dukou.settings.serving import Engine as EngineSettings
from dukou.store import policies, publishing
from dukou.store.policies import Policy
from dukou.store.states import Stage
from tests.fakes.tiny_llama import VOCABULARY, save
from tests.fakes.turns import add_turn

NOW = datetime(2030, 1, 1, tzinfo=UTC)  # later than any row: timeouts have passed


def config(folder: Path, **sections: dict[str, Any]) -> Config:
    """Settings for a batch of four on the CPU, with the state and the base model under `folder`."""
    base = folder / "base"
    if not base.exists():
        save(base)
    trainer = {"device": "cpu", "lora_rank": 4, "learning_rate": 1e-2, "max_tokens": 64, "threads": 1}
    return Config(
        state_dir=folder / "state",
        engine=EngineSettings(model_path=str(base)),
        batch=BatchSettings(**{"rollout_batch_size": 4, "min_size": 2, **sections.pop("batch", {})}),
        trainer=TrainerSettings(**{**trainer, **sections.pop("trainer", {})}),
        **sections,
    )


def make_policy(db: Engine, settings: Config) -> Policy:
    with db.begin() as connection:
        return policies.default(connection, settings)


def add_scored(connection: Connection, policy: Policy, numbers: range, **more: Any) -> None:
    """Scored turns with answers that their numbers decide; odd ones were good."""
    for number in numbers:
        generator = np.random.default_rng(number)
        answer = generator.integers(0, VOCABULARY, 6 + number % 5).astype(np.int32)
        add_turn(
            connection,
            number,
            Stage.SCORED,
            policy_id=policy.id,
            score=1.0 if number % 2 else -1.0,
            **{
                "prompt_ids": generator.integers(0, VOCABULARY, 5).astype(np.int32),
                "response_ids": answer,
                "response_logprobs": np.full(len(answer), -6.2, np.float32),
                "temperature": 0.8,
                "finish_reason": "stop",
                **more,
            },
        )


def fill(db: Engine, policy: Policy, numbers: range, **more: Any) -> None:
    with db.begin() as connection:
        add_scored(connection, policy, numbers, **more)


def rows(db: Engine, query: str) -> list[tuple[Any, ...]]:
    with db.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(query)]


def make_live(engine: Engine, config: Config, version: int) -> None:
    """As a person does it. Raises UnknownVersionError or RefusedVersionError."""
    with engine.begin() as connection:
        publishing.publish(connection, publishing.find(connection, config.policy.name).id, version)


def newest_unpublished(engine: Engine, config: Config) -> int | None:
    with engine.connect() as connection:
        policy = publishing.find(connection, config.policy.name)
        return publishing.newest_unpublished(connection, policy.id)
