"""The one sentence that says what the learner waits for and what would change that: a decision table.

`RULES` are asked in order; the first that answers is the sentence. The order is that of causes: what is
named first keeps what stands below it from happening.
"""

from collections.abc import Callable
from dataclasses import replace

from dukou.store.funnel import EngineView, Snapshot
from dukou.store.processes import Heartbeat
from dukou.store.states import REASONS, Stage
from learner.batch.close import why_frozen_after
from learner.log import age
from learner.status.facts import Explanation, StatusFacts, StatusSettings
from learner.status.remedies import REMEDIES

Rule = Callable[[Snapshot, StatusSettings], Explanation | None]


def explain(facts: StatusFacts) -> Explanation:
    """The first rule's answer; total: the last rule answers when no other does."""
    if facts.snapshot is None:
        return _no_tables(facts) if facts.schema_missing else _no_postgres(facts)
    answers = (rule(facts.snapshot, facts.settings) for rule in RULES)
    return next(answer for answer in answers if answer)


def from_inside(facts: StatusFacts, own: Heartbeat) -> StatusFacts:
    """The facts as a running process sees them: its own report may be old or not yet written."""
    if facts.snapshot is None:
        return facts
    others = tuple(one for one in facts.snapshot.heartbeats if one.name != own.name)
    return replace(facts, snapshot=replace(facts.snapshot, heartbeats=(own, *others)))


def sentence(facts: StatusFacts) -> str:
    """`explain` as text."""
    return explain(facts).sentence()


def _no_postgres(facts: StatusFacts) -> Explanation:
    because = f"it cannot be reached ({facts.trouble or 'no reason given'})"
    change = "start it or mend [database] url; turns stay safe in the gateway's spool meanwhile"
    return Explanation("no_postgres", "waits for Postgres", because, change)


def _no_tables(facts: StatusFacts) -> Explanation:
    because = f"the database has no tables of this version ({facts.trouble or 'none found'})"
    return Explanation("no_tables", "waits for the tables", because, "run `alembic upgrade head`")


def _drain_standstill(s: Snapshot, _: StatusSettings) -> Explanation | None:
    if s.standstill is None:
        return None
    late, seconds = s.standstill
    lie = "lies" if late == 1 else "lie"
    because = f"{_turns(late)} {lie} in the gateway's spool and for {age(seconds)} none was written"
    drainer = s.heartbeat("drainer")
    change = "the gateway's log says why, and nothing is lost meanwhile"
    if drainer is not None and not drainer.alive:
        change = "start its drainer with `python -m gateway`: nothing is lost meanwhile"
    return Explanation("drain_standstill", "gets no new turns", because, change)


def _learner_off(s: Snapshot, _: StatusSettings) -> Explanation | None:
    if any(one.alive and one.learner.trains for one in s.heartbeats):
        return None
    learner = s.heartbeat("learner")
    because = f"it last reported {age(learner.age)} ago" if learner else "it has never reported"
    change = f"start it with `python -m learner`{_backlog(s)}"
    return Explanation("learner_off", "seems not to run", because, change)


def _backlog(s: Snapshot) -> str:
    waiting = s.waiting(Stage.SCORABLE) + s.waiting(Stage.SCORED) + s.waiting(Stage.BATCHED)
    return (
        f" ({_turns(waiting)} {'waits' if waiting == 1 else 'wait'} for it, and nothing is lost)"
        if waiting
        else ""
    )


def _in_trouble(s: Snapshot, _: StatusSettings) -> Explanation | None:
    living = (one.learner for one in s.heartbeats if one.alive)
    trouble = next((learner.trouble for learner in living if learner.trouble), None)
    if trouble is None:
        return None
    change = "it tries again by itself; its log says more"
    return Explanation(
        "in_trouble", "waits for its own training to work", f"the last try failed ({trouble})", change
    )


def _dry_run(s: Snapshot, settings: StatusSettings) -> Explanation | None:
    if not (settings.dry_run and s.open_batch):
        return None
    because = f"trainer.dry_run is on and batch {s.open_batch.id} ({_turns(s.open_batch.samples)}) is closed"
    return Explanation("dry_run", "trains nothing", because, "set trainer.dry_run to false and restart it")


def _frozen(s: Snapshot, settings: StatusSettings) -> Explanation | None:
    if s.live_version is None:
        return None
    because = why_frozen_after(s.ended, s.live_version, settings.guard)
    if because is None:
        return None
    change = "go back with `python -m learner rollback`, or raise that limit of [guard] and restart it"
    return Explanation("frozen", "trains nothing", because, change)


def _training(s: Snapshot, _: StatusSettings) -> Explanation | None:
    batch = s.open_batch
    if batch is None:
        return None
    because = f"the batch closed {age(batch.age)} ago ({batch.closed_because})"
    change = "a new version follows when the step is done"
    return Explanation("training", f"trains batch {batch.id} ({_turns(batch.samples)})", because, change)


def _engine_behind(s: Snapshot, _: StatusSettings) -> Explanation | None:
    behind = [engine for engine in s.engines if engine.version != s.live_version]
    if not behind or not s.live_version:
        return None
    engine = behind[0]
    does = f"waits for {engine.url} to load version {s.live_version}"
    if engine.state == "dead":
        return Explanation("engine_dead", does, _dead(engine), "start the engine: the version is loaded then")
    if not s.alive("reconciler"):
        return Explanation(
            "no_reconciler", does, "no reconciler has reported lately", "start `python -m gateway`"
        )
    if s.publish_error:
        return Explanation(
            "publish_failed", does, f"loading failed ({s.publish_error})", "the reconciler tries again"
        )
    serves = "an unknown version" if engine.version is None else f"version {engine.version}"
    return Explanation(
        "publishing", does, f"it still serves {serves}", "the reconciler loads it within seconds"
    )


def _engines_dead(s: Snapshot, _: StatusSettings) -> Explanation | None:
    if not s.engines or any(engine.state != "dead" for engine in s.engines):
        return None
    return Explanation(
        "engine_dead", "waits for an engine", _dead(s.engines[0]), "start it: without it no turn arrives"
    )


def _dead(engine: EngineView) -> str:
    return f"{engine.url} is dead ({engine.reason or 'no reason known'})"


def _no_gateway(s: Snapshot, settings: StatusSettings) -> Explanation | None:
    drainer = s.heartbeat("drainer")
    if s.alive("drainer") or _work(s, settings):
        return None
    because = (
        f"its drainer last reported {age(drainer.age)} ago" if drainer else "its drainer has never reported"
    )
    return Explanation("no_gateway", "waits for the gateway", because, "start it with `python -m gateway`")


def _work(s: Snapshot, settings: StatusSettings) -> bool:
    return s.waiting(Stage.SCORABLE) > 0 or s.waiting(Stage.SCORED) >= settings.batch_size


def _no_traffic(s: Snapshot, settings: StatusSettings) -> Explanation | None:
    if s.recent:
        return None
    if s.undrained:
        because = f"{s.undrained} requests still lie in the spool"
        return Explanation(
            "undrained", "waits for the drainer", because, "they are turns when the drainer has read them"
        )
    change = f"send a chat request to {settings.gateway}"
    return Explanation("no_traffic", "waits for traffic", "no turn has been recorded yet", change)


def _judge_paused(s: Snapshot, _: StatusSettings) -> Explanation | None:
    paused = next((scorer.learner.judge_paused for scorer in _scorers(s)), None)
    if not (paused and s.waiting(Stage.SCORABLE)):
        return None
    waiting = _turns(s.waiting(Stage.SCORABLE))
    change = f"mend that, or set judge.kind to rules, and restart: {waiting} waiting for it stay as they are"
    return Explanation("judge_paused", "waits for the judge", paused, change)


def _no_scorer(s: Snapshot, _: StatusSettings) -> Explanation | None:
    waiting = s.waiting(Stage.SCORABLE)
    if _scorers(s) or not waiting:
        return None
    because = f"{_turns(waiting)} could be scored and no process scores"
    return Explanation("no_scorer", "waits for a scorer", because, "start `python -m learner score`")


def _scorers(s: Snapshot) -> list[Heartbeat]:
    return [one for one in s.heartbeats if one.alive and one.learner.scores]


def _samples(s: Snapshot, settings: StatusSettings) -> Explanation | None:
    scored, scorable, awaiting = (s.waiting(x) for x in (Stage.SCORED, Stage.SCORABLE, Stage.AWAITING_NEXT))
    if not scored + scorable:
        return None
    has = f"{scored} of {settings.batch_size} samples are there"
    if scored >= settings.batch_size:
        has = f"{scored} samples are there and a batch closes next, unless batch.max_share_* forbids it"
    more = [f"{_turns(scorable)} to be scored{_put_off(s)}"] * bool(scorable)
    more += [f"{_turns(awaiting)} awaiting a next state"] * bool(awaiting)
    because = ", ".join([has, *more, *_mostly_dropped(s)])
    change = (
        f"a batch closes with {settings.batch_size}, "
        f"or with at least {settings.min_size} when the oldest has waited {age(settings.timeout)}"
    )
    return Explanation("samples", "waits for samples", because, change)


def _put_off(s: Snapshot) -> str:
    """Why the last try to score gave nothing, where turns wait for the next."""
    put_off = {c.reason: c.turns for c in s.live if c.stage == Stage.SCORABLE and c.reason}
    return (
        f" ({', '.join(f'{turns} again after {reason}' for reason, turns in put_off.items())})"
        if put_off
        else ""
    )


def _mostly_dropped(s: Snapshot) -> list[str]:
    """Says so where most of the newest turns can't be trained: then the batch fills slowly, or never."""
    dropped = sum(count.turns for count in s.recent if count.stage == Stage.DROPPED)
    share = dropped / max(1, sum(count.turns for count in s.recent))
    return [_dominating(s)] if share > 0.5 else []


def _awaiting_next(s: Snapshot, settings: StatusSettings) -> Explanation | None:
    waiting = s.waiting(Stage.AWAITING_NEXT)
    if not waiting:
        return None
    nothing = f"nothing has followed yet on {_turns(waiting)}, and a turn is scored by what follows"
    because = "; ".join([nothing, *_mostly_dropped(s)])
    change = (
        "the user's next message or a tool result makes it scorable; "
        f"it is dropped when its session stays idle for {age(settings.idle_seconds)}"
    )
    return Explanation("next_state", "waits for next states", because, change)


def _all_dropped(s: Snapshot, _: StatusSettings) -> Explanation | None:
    if any(count.stage != Stage.DROPPED for count in s.recent):
        return None
    reason = _reasons(s)[0][0]
    return Explanation("all_dropped", "waits for turns that it can train", _dominating(s), _remedy(reason))


def _dominating(s: Snapshot) -> str:
    reason, number = _reasons(s)[0]
    total = sum(count.turns for count in s.recent)
    words = REASONS.get(reason, "no words for it")
    return f"{number} of the newest {_turns(total)} dropped as {reason} ({words})"


def _reasons(s: Snapshot) -> list[tuple[str, int]]:
    dropped = [(count.reason or "", count.turns) for count in s.recent if count.stage == Stage.DROPPED]
    return sorted(dropped, key=lambda pair: -pair[1])


def _remedy(reason: str) -> str:
    return REMEDIES.get(reason, "docs/operations.md says more of this reason")


def _all_used(s: Snapshot, _: StatusSettings) -> Explanation:
    because = f"every turn so far is trained or dropped, the last one came {age(s.last_turn_age)} ago"
    return Explanation("traffic", "waits for traffic", because, "new conversations bring new samples")


RULES: tuple[Rule, ...] = (
    _drain_standstill,
    _learner_off,
    _in_trouble,
    _dry_run,
    _frozen,
    _training,
    _engine_behind,
    _engines_dead,
    _no_gateway,
    _no_traffic,
    _judge_paused,
    _no_scorer,
    _samples,
    _awaiting_next,
    _all_dropped,
    _all_used,
)


def _turns(number: int) -> str:
    return f"{number} turn" if number == 1 else f"{number} turns"
