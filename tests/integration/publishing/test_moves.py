"""Moving the live pointer: what follows from each move, and what is refused in words."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine

from dukou.settings.model import Config
from dukou.store import policies, publishing, versions
from dukou.store.publishing import PublishingError, Trial
from dukou.store.versions import Form, NewVersion, RefusedVersionError
from learner import cli
from learner.train.publish import advance


def made(connection: Connection, *line: tuple[int, int], form: Form = "adapter") -> int:
    """A policy with versions (number, parent), none of them live yet."""
    policy = policies.get_or_create(connection, "default", "global", "base").id
    for number, parent in line:
        versions.insert(connection, NewVersion(policy, number, parent, None, f"v{number}", form, None))
    return policy


@pytest.fixture
def config(tmp_path: Path, database_url: str) -> Config:
    file = tmp_path / "config.toml"
    file.write_text(f'[database]\nurl = "{database_url}"\n')
    return Config.model_validate({"state_dir": tmp_path, "database": {"url": database_url}})


def learner(tmp_path: Path, *words: str) -> int:
    return cli.main([*words, "--config", str(tmp_path / "config.toml")])


def test_a_rollback_goes_to_the_nearest_ancestor_that_ever_was_live(db: Engine) -> None:
    with db.begin() as connection:
        policy = made(connection, (1, 0), (2, 1), (3, 2))
        publishing.publish(connection, policy, 1)
        publishing.publish(connection, policy, 3)
        assert publishing.rollback(connection, policy, because="it swears") == 1
        assert versions.get(connection, policy, 3).reason == "rolled back: version 1 became live (it swears)"
        assert publishing.rollback(connection, policy) == 0
        with pytest.raises(PublishingError, match="no ancestor"):
            publishing.rollback(connection, policy)


def test_a_rollback_passes_over_what_was_refused(db: Engine) -> None:
    with db.begin() as connection:
        policy = made(connection, (1, 0), (2, 1))
        publishing.publish(connection, policy, 1)
        publishing.publish(connection, policy, 2)
        versions.refuse(connection, policy, 1, "its probe differs")
        assert publishing.rollback(connection, policy) == 0
        with pytest.raises(RefusedVersionError, match="its probe differs"):
            publishing.rollback(connection, policy, to=1)


def test_numbers_grow_over_rollbacks_and_refusals(db: Engine) -> None:
    with db.begin() as connection:
        policy = made(connection, (1, 0), (2, 1))
        publishing.publish(connection, policy, 2)
        publishing.rollback(connection, policy, to=0)
        versions.refuse(connection, policy, 2, "bad")
        assert versions.next_version(connection, policy) == 3
        assert publishing.newest_unpublished(connection, policy) == 1  # 2 was live: it stays behind


def test_what_is_pinned_is_replaced_by_a_person_only(db: Engine, config: Config) -> None:
    with db.begin() as connection:
        policy = made(connection, (1, 0), (2, 1))
        assert publishing.pin(connection, policy, 1) == 1
    assert advance(db, config, datetime.now(UTC), asked=False) is None
    with db.begin() as connection:
        assert publishing.publish(connection, policy) == 2
        publishing.unpin(connection, policy)
        made(connection, (3, 2))
    assert "version=3" in str(advance(db, config, datetime.now(UTC), asked=False))


def test_a_trial_gives_a_share_beside_the_live_version_and_ends_with_any_move(db: Engine) -> None:
    with db.begin() as connection:
        policy = made(connection, (1, 0), (2, 1))
        assert publishing.try_out(connection, policy, None, 0.25) == 2
        assert publishing.pointers(connection, policy) == publishing.Pointers(0, False, Trial(2, 0.25))
        publishing.publish(connection, policy, 2)
        assert publishing.pointers(connection, policy).trial is None
        made(connection, (3, 2))
        publishing.try_out(connection, policy, 3, 0.5)
        versions.refuse(connection, policy, 3, "worse")
        assert publishing.pointers(connection, policy) == publishing.Pointers(2, False, None)


def test_full_weights_cannot_be_tried_beside_others(db: Engine) -> None:
    with db.begin() as connection:
        policy = made(connection, (1, 0), form="full")
        with pytest.raises(PublishingError, match="only adapters"):
            publishing.try_out(connection, policy, 1, 0.5)
        made(connection, (2, 1))
        with pytest.raises(PublishingError, match="between 0 and 1"):
            publishing.try_out(connection, policy, 2, 1.0)


def test_folders_stay_as_long_as_their_version_may_be_served(db: Engine) -> None:
    from dukou.store import processes

    with db.begin() as connection:
        policy = made(connection, *((number, number - 1) for number in range(1, 8)))
        for number in (2, 3, 5):
            publishing.publish(connection, policy, number)
        publishing.try_out(connection, policy, 6, 0.1)
        processes.record(connection, "http://slow", "ready", reason=None, version=1, dialect="sglang")
        # 1: on an engine; 3: to go back to; 5: live; 6: on trial; 7: training goes on from it
        assert publishing.in_use(connection, policy) == {1, 3, 5, 6, 7}


def test_the_command_line_moves_the_pointer_and_shows_the_tree(
    db: Engine, config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with db.begin() as connection:
        policy = made(connection, (1, 0), (2, 1))
    assert learner(tmp_path, "publish", "--version", "2") == 0
    assert learner(tmp_path, "rollback", "--to", "1", "--because", "too long") == 0
    assert learner(tmp_path, "pin") == 0
    capsys.readouterr()
    assert learner(tmp_path, "versions") == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in shown] == [["2", "retired"], ["1", "live"], ["0", "retired"]]
    assert "too long" in shown[0]
    assert shown[1].endswith("pinned")
    assert learner(tmp_path, "versions", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["version"], row["parent"], row["pinned"]) for row in rows] == [
        (2, 1, False),
        (1, 0, True),
        (0, None, False),
    ]
    assert learner(tmp_path, "pin", "--off") == 0
    assert learner(tmp_path, "publish", "--version", "2", "--share", "0.1") == 0
    with db.connect() as connection:
        assert publishing.pointers(connection, policy) == publishing.Pointers(1, False, Trial(2, 0.1))


def test_what_cannot_be_done_is_said_in_a_sentence(
    db: Engine, config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert learner(tmp_path, "rollback") == 1
    assert "begins with its first turn" in capsys.readouterr().err
    with db.begin() as connection:
        made(connection)
    assert learner(tmp_path, "publish", "--version", "9") == 1
    assert "no version 9" in capsys.readouterr().err
