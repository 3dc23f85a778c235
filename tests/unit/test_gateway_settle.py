"""Which version a session gets where an engine serves several."""

from pathlib import Path

from gateway.reconcile import routes_file
from gateway.reconcile.adapter_plan import ExtraAdapters
from gateway.reconcile.decide import Route, Target
from gateway.relay.ending import Ending, reply_record
from gateway.relay.routing import version_for_session
from gateway.routes import EngineFacts, EngineRoute, OtherVersions, Routes, load

LIVE = EngineRoute(
    "http://a", "ready", 4, 4, "default-v4", "sglang", beside={3: "default-v3", 5: "default-v5"}
)


def test_without_a_trial_or_a_pin_everybody_gets_the_live_version() -> None:
    assert version_for_session(LIVE, OtherVersions(), "default/s", "s") is LIVE


def test_a_pinned_session_stays_on_its_version_and_others_do_not() -> None:
    others = OtherVersions(pins={"default/s": 3, "default/gone": 2, "default/base": 0})
    pinned = version_for_session(LIVE, others, "default/s", "s")
    assert (pinned.adapter, pinned.version_low, pinned.version_high) == ("default-v3", 3, 3)
    assert version_for_session(LIVE, others, "default/other", "other") is LIVE
    assert version_for_session(LIVE, others, None, "s") is LIVE
    assert (
        version_for_session(LIVE, others, "default/gone", "gone") is LIVE
    )  # its adapter is not here any more
    base = version_for_session(LIVE, others, "default/base", "base")
    assert (base.adapter, base.version_low) == (None, 0)


def test_a_trial_gets_its_share_of_the_sessions_and_each_stays_where_it_is() -> None:
    others = OtherVersions(trial=5, share=0.2)
    chosen = [version_for_session(LIVE, others, None, f"session {n}").version_low for n in range(2000)]
    assert set(chosen) == {4, 5}
    assert 0.17 < chosen.count(5) / 2000 < 0.23
    again = [version_for_session(LIVE, others, None, f"session {n}").version_low for n in range(2000)]
    assert again == chosen
    next_trial = [
        version_for_session(LIVE, OtherVersions(trial=3, share=0.2), None, f"session {n}")
        for n in range(2000)
    ]
    both = sum(a == 5 and b.version_low == 3 for a, b in zip(chosen, next_trial, strict=True))
    assert both < 160  # another trial takes other sessions: 80 of 2000 by chance


def test_a_pin_outranks_a_trial() -> None:
    others = OtherVersions(trial=5, share=0.999, pins={"default/s": 3})
    assert version_for_session(LIVE, others, "default/s", "s").version_low == 3


def test_the_turn_of_a_settled_session_has_its_own_version_whatever_the_engine_does_meanwhile() -> None:
    sent = version_for_session(LIVE, OtherVersions(pins={"default/s": 3}), "default/s", "s")
    reply = reply_record(
        "id", Ending("ok"), b"", status=200, gone=None, first_byte_ns=1, sent_to=sent, engine_now=LIVE
    )
    assert (reply.version_min, reply.version_max, reply.adapter) == (3, 3, "default-v3")


def test_workers_read_what_the_reconciler_writes(tmp_path: Path) -> None:
    trial = Target(5, "adapter", "versions/5", "default-v5")
    extra = ExtraAdapters(trial, 0.2, {"default/s": 3}, {})
    route = Route("ready", None, 4, 4, "default-v4", "sglang", frozenset({"default-v3", "default-v5"}))
    engine = routes_file.engine_route("http://a", route, EngineFacts(), "default")
    routes_file.write(tmp_path / "routes.json", Routes((engine,), routes_file.other_versions(extra)))
    read = load((tmp_path / "routes.json").read_bytes())
    assert read.engines == (LIVE,)
    assert read.others == OtherVersions(5, 0.2, {"default/s": 3})
