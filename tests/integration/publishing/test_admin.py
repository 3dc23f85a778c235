"""The admin API: who gets in, what it moves, and how it refuses."""

from pathlib import Path

import pytest
from sqlalchemy import Engine

from dukou.settings.model import Config
from dukou.store import policies, versions
from dukou.store.versions import NewVersion
from tests.fakes.gateway import running

pytestmark = pytest.mark.anyio
ADMIN = {"authorization": "Bearer root"}


def config(state: Path, url: str, *admin_keys: str) -> Config:
    gateway = {"keys": ["client"], "admin_keys": list(admin_keys)}
    return Config.model_validate({"state_dir": state, "database": {"url": url}, "gateway": gateway})


def versions_1_and_2(db: Engine) -> None:
    with db.begin() as connection:
        policy = policies.get_or_create(connection, "default", "global", "base").id
        for number in (1, 2):
            new = NewVersion(policy, number, number - 1, None, f"v{number}", "adapter", None)
            versions.insert(connection, new)


async def test_every_move_of_the_command_line_is_there(db: Engine, database_url: str, tmp_path: Path) -> None:
    versions_1_and_2(db)
    async with running(config(tmp_path, database_url, "root")) as gw:
        client = gw.client
        client.headers.update(ADMIN)
        assert (await client.post("/admin/publish", json={})).json() == {"live": 2}
        assert (await client.post("/admin/rollback", json={"because": "rude"})).json() == {"live": 0}
        assert (await client.post("/admin/pin", json={"version": 1})).json() == {"live": 1, "pinned": True}
        tried = await client.post("/admin/publish", json={"version": 2, "share": 0.5})
        assert tried.json() == {"trial": 2, "share": 0.5}
        seen = (await client.get("/admin/versions")).json()
        assert (seen["live"], seen["pinned"]) == (1, True)
        assert [(row["version"], row["trial_share"]) for row in seen["versions"]] == [
            (2, 0.5),
            (1, None),
            (0, None),
        ]
        assert (await client.delete("/admin/pin")).json() == {"pinned": False}


async def test_only_an_admin_key_gets_in_and_without_one_it_is_closed(tmp_path: Path) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    async with running(config(tmp_path, nowhere, "root")) as gw:
        for headers in ({}, {"authorization": "Bearer client"}):
            assert (await gw.client.get("/admin/versions", headers=headers)).status_code == 401
        chat = await gw.client.post("/v1/chat/completions", json={}, headers=ADMIN)
        assert chat.status_code == 401  # an admin key is no client's key
    async with running(config(tmp_path / "closed", nowhere)) as gw:
        closed = await gw.client.get("/admin/versions", headers={"authorization": "Bearer client"})
        assert closed.status_code == 403
        assert "gateway.admin_keys" in closed.json()["error"]["message"]


async def test_refusals_have_openais_shape_and_say_why(db: Engine, database_url: str, tmp_path: Path) -> None:
    async with running(config(tmp_path, database_url, "root")) as gw:
        gw.client.headers.update(ADMIN)
        none_yet = await gw.client.post("/admin/rollback", json={})
        assert (none_yet.status_code, none_yet.json()["error"]["code"]) == (409, "conflict")
        versions_1_and_2(db)
        cases = [
            ("/admin/publish", {"version": 7}, 404, "no version 7"),
            ("/admin/publish", {"verison": 1}, 400, "verison"),
            ("/admin/nothing", {}, 404, "no such endpoint"),
        ]
        for path, body, status, says in cases:
            refused = await gw.client.post(path, json=body)
            assert refused.status_code == status
            assert says in refused.json()["error"]["message"]


async def test_postgres_away_is_said_and_users_are_still_served(tmp_path: Path) -> None:
    async with running(config(tmp_path, "postgresql://nobody@127.0.0.1:1/none", "root")) as gw:
        away = await gw.client.get("/admin/versions", headers=ADMIN)
        assert away.status_code == 503
        assert (await gw.client.get("/healthz")).status_code == 200
