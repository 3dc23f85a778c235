"""The tree of versions and the live pointer into it."""

import pytest
from sqlalchemy import select

from dukou.store import versions
from dukou.store.tables import versions as version_rows
from tests.fakes.world import World


def test_the_pointer_falls_back_past_every_refused_ancestor(world: World) -> None:
    for version in (1, 2, 3):
        world.make(version)
    with world.db.begin() as connection:
        versions.refuse(connection, world.policy, 2, "no good")
        versions.set_live(connection, world.policy, 3)
        assert versions.refuse(connection, world.policy, 3, "no better") == 1


def test_the_next_number_is_above_every_number_there_ever_was(world: World) -> None:
    """W12."""
    for version in (1, 2, 7):
        world.make(version, parent=0)
    world.live(1)
    with world.db.begin() as connection:
        versions.refuse(connection, world.policy, 7, "no")
        assert versions.next_version(connection, world.policy) == 8


def test_ancestors_lead_back_along_the_tree(world: World) -> None:
    world.make(1)
    world.make(2)
    world.make(3, parent=1)
    with world.db.begin() as connection:
        assert versions.ancestors(connection, world.policy, 3) == [3, 1, 0]


def test_a_refused_version_cannot_become_live(world: World) -> None:
    world.make(1)
    with world.db.begin() as connection:
        versions.refuse(connection, world.policy, 1, "no")
        with pytest.raises(versions.RefusedVersionError, match="no"):
            versions.set_live(connection, world.policy, 1)
        with pytest.raises(versions.UnknownVersionError):
            versions.set_live(connection, world.policy, 9)


def test_a_refusal_outlasts_the_move_of_the_pointer(world: World) -> None:
    world.make(1)
    world.live(1)
    with world.db.begin() as connection:
        versions.refuse(connection, world.policy, 1, "no")
    assert world.status(1) == ("refused", "no")
    assert world.live_version() == 0
    assert world.status(0)[0] == "live"


def test_the_base_model_cannot_be_refused(world: World) -> None:
    with world.db.begin() as connection, pytest.raises(versions.RefusedVersionError):
        versions.refuse(connection, world.policy, 0, "no")
    with world.db.begin() as connection:
        assert connection.scalar(select(version_rows.c.status)) == "written"
