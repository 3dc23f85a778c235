"""Which engine is chosen, what is held, and what a routes file that cannot be read changes (nothing)."""

import json
from pathlib import Path

import pytest

from gateway.relay.errors import NoEngineError
from gateway.relay.router import Router, choose
from gateway.routes import EngineRoute

pytestmark = pytest.mark.anyio

A, B = EngineRoute("http://a"), EngineRoute("http://b")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def write(path: Path, *engines: dict[str, object]) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"policy": "default", "model": "m", "engines": list(engines)}))
    new.rename(path)


def test_the_least_busy_engine_is_chosen_and_a_familiar_one_within_its_slack() -> None:
    busy = {"http://a": 3, "http://b": 1}
    assert choose([A, B], busy.__getitem__, None) is B
    assert choose([A, B], busy.__getitem__, "http://a") is A
    assert choose([A, B], {"http://a": 30, "http://b": 1}.__getitem__, "http://a") is B
    assert choose([], busy.__getitem__, None) is None


async def test_without_a_file_the_configured_engines_serve_with_unknown_versions(tmp_path: Path) -> None:
    router = Router(tmp_path / "routes.json", ["http://a/"], 9)
    assert await router.take(None, frozenset()) == EngineRoute("http://a")


async def test_a_new_file_is_seen_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    router = Router(path, ["http://a"], 9, clock=Clock())
    write(path, {"url": "http://b", "state": "ready", "version_low": 3, "version_high": 3})
    assert router.routes().engines == (EngineRoute("http://b", "ready", 3, 3),)
    path.write_text("{")
    assert router.routes().engines[0].version_low == 3
    path.unlink()
    assert router.routes().engines == (EngineRoute("http://a"),)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({}, None),
        ({"sampling_defaults": None}, None),
        ({"sampling_defaults": "model"}, None),
        ({"sampling_defaults": {}}, {}),
        ({"sampling_defaults": {"temperature": 0.6}}, {"temperature": 0.6}),
    ],
)
async def test_what_an_engine_takes_for_left_out_fields_is_known_only_where_the_file_says_it(
    tmp_path: Path, entry: dict[str, object], expected: dict[str, float] | None
) -> None:
    write(tmp_path / "routes.json", {"url": "http://a", "state": "ready"} | entry)
    engine = await Router(tmp_path / "routes.json", [], 9).take(None, frozenset())
    assert engine.facts.sampling_defaults == expected


@pytest.mark.parametrize("state", ["starting", "paused", "updating"])
async def test_requests_are_held_for_a_while_and_then_refused_with_retry_after(
    tmp_path: Path, state: str
) -> None:
    """P23."""
    write(tmp_path / "routes.json", {"url": "http://a", "state": state}, {"url": "http://b", "state": "dead"})
    router = Router(tmp_path / "routes.json", [], 9, hold_seconds=5, clock=Clock())
    with pytest.raises(NoEngineError) as refused:
        await router.take(None, frozenset())
    assert refused.value.status == 503
    assert dict(refused.value.headers)[b"retry-after"]


async def test_a_held_request_goes_on_when_an_engine_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "routes.json"
    write(path, {"url": "http://a", "state": "updating"})

    async def sleep(_: float) -> None:
        write(path, {"url": "http://a", "state": "ready"})

    monkeypatch.setattr("gateway.relay.router.asyncio.sleep", sleep)
    router = Router(path, [], 9, clock=Clock())
    assert (await router.take(None, frozenset())).state == "ready"


async def test_dead_engines_are_tried_when_there_is_no_other(tmp_path: Path) -> None:
    write(tmp_path / "routes.json", {"url": "http://a", "state": "dead"})
    router = Router(tmp_path / "routes.json", [], 9)
    assert (await router.take(None, frozenset())).url == "http://a"


async def test_sessions_stay_where_they_were_and_suspects_come_last(tmp_path: Path) -> None:
    now = 0.0
    router = Router(tmp_path / "none", ["http://a", "http://b"], 9, clock=lambda: now)
    first = await router.take("s", frozenset())
    assert (await router.take("other", frozenset())).url != first.url
    assert (await router.take("s", frozenset())).url == first.url
    router.suspect(first.url)
    assert (await router.take("s", frozenset())).url != first.url
    with pytest.raises(NoEngineError):
        await router.take("s", frozenset({"http://a", "http://b"}))
