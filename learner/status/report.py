"""What `learner status` prints, as text and as JSON: pure.

What the judge and the teacher did lately, and what they cost: a block of `learner status`.
"""

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection

from dukou.settings.environment import FromEnvironment, sentence
from dukou.settings.learning import JudgeSettings
from dukou.store import calls, feedback
from dukou.store.calls import Caps, Costs, OutcomeCount
from dukou.store.feedback import FeedbackCounts
from dukou.store.funnel import Count, Snapshot, VersionView
from dukou.store.processes import Heartbeat
from dukou.store.states import REASONS
from learner.log import age
from learner.status.facts import StatusFacts
from learner.status.funnel import FunnelStep, funnel
from learner.status.sentence import explain

HOURS = 24


@dataclass(frozen=True)
class Judging:
    """Calls of the last HOURS by purpose and outcome, what was spent, and what people said."""

    outcomes: tuple[OutcomeCount, ...]
    today: Costs
    ever: Costs
    caps: Caps
    feedback: FeedbackCounts


def caps_of(judge: JudgeSettings) -> Caps:
    """The caps in the settings."""
    return Caps(judge.usd_per_day, judge.usd_total, judge.tokens_per_day, judge.tokens_total)


def look(connection: Connection, caps: Caps) -> Judging:
    today = calls.spent(connection, datetime.now(UTC).date())
    outcomes = tuple(calls.lately(connection, HOURS))
    return Judging(outcomes, today, calls.spent(connection), caps, feedback.counts(connection))


def text(judging: Judging) -> str:
    """One line for each outcome that happened; empty where nothing was ever asked or said."""
    lines = []
    for purpose in sorted({outcome.purpose for outcome in judging.outcomes}):
        found = [o for o in judging.outcomes if o.purpose == purpose]
        lines.append(f"  {purpose}: {sum(o.calls for o in found)} calls in {HOURS} h")
        lines += [f"    - {o.calls} {o.outcome}" for o in found]
    if judging.ever.calls:
        lines.append(f"  spent today {_spent(judging.today)}; ever {_spent(judging.ever)}")
    if reached := calls.reached(judging.caps, judging.today, judging.ever):
        lines.append(f"  stopped: {reached}")
    if (said := judging.feedback).all:
        lines.append(f"  feedback: {said.all}, of which {said.unmatched} found no turn")
    return "\n".join(["scoring", *lines]) if lines else ""


def _spent(spent: Costs) -> str:
    """Tokens and money; no sum of money where no price at all is known."""
    if spent.unpriced and not spent.cost_usd:
        return f"{spent.tokens} tokens at an unknown price ({spent.unpriced} calls)"
    unknown = f" (and {spent.unpriced} calls of unknown price)" if spent.unpriced else ""
    return f"{spent.tokens} tokens, ${spent.cost_usd:.4f}{unknown}"


WIDTH = 100
PROCESSES = ("learner", "drainer", "reconciler")


@dataclass(frozen=True)
class StatusReport:
    """`facts.snapshot` None: only the sentence can be said."""

    policy: str
    facts: StatusFacts
    totals: tuple[Count, ...] = ()
    judging: Judging | None = None
    from_environment: tuple[FromEnvironment, ...] = ()  # settings, of this process

    def text(self) -> str:
        """Plain text, at most WIDTH columns, the sentence last."""
        words = (sentence(self.from_environment), explain(self.facts).sentence())
        blocks = [textwrap.fill(said, WIDTH, break_long_words=False) for said in words if said]
        if snapshot := self.facts.snapshot:
            blocks = [
                _table(funnel(self.totals, snapshot)),
                _policy(self.policy, snapshot),
                _engines(snapshot),
                _processes(snapshot),
                *([said] if self.judging and (said := text(self.judging)) else []),
                *blocks,
            ]
        return "\n\n".join(blocks)

    def json(self) -> str:
        """The same, for machines: an unknown number is null."""
        answer, snapshot = explain(self.facts), self.facts.snapshot
        body: dict[str, object] = {"sentence": answer.sentence(), **asdict(answer), "policy": self.policy}
        body["settings_from_environment"] = [asdict(one) for one in self.from_environment]
        if snapshot:
            body |= {
                "funnel": [_step_json(step) for step in funnel(self.totals, snapshot)],
                "live_version": snapshot.live_version,
                "versions": [asdict(version) for version in snapshot.versions],
                "engines": [asdict(engine) for engine in snapshot.engines],
                "processes": [_process_json(one) for one in snapshot.heartbeats],
                "open_batch": asdict(snapshot.open_batch) if snapshot.open_batch else None,
                "last_turn_age": snapshot.last_turn_age,
                "set_aside": snapshot.set_aside,
                "scoring": asdict(self.judging) if self.judging else None,
            }
        return json.dumps(body, ensure_ascii=False, indent=2)


def _step_json(step: FunnelStep) -> dict[str, object]:
    return asdict(step) | {"lost": [{"reason": reason, "turns": turns} for reason, turns in step.lost]}


def _process_json(heartbeat: Heartbeat) -> dict[str, object]:
    return asdict(heartbeat) | {"detail": heartbeat.encode_detail() or {}, "alive": heartbeat.alive}


def _table(steps: tuple[FunnelStep, ...]) -> str:
    return "\n".join(
        ["step           turns  waiting   oldest", *(line for step in steps for line in _rows(step))]
    )


def _rows(step: FunnelStep) -> Iterator[str]:
    turns = "?" if step.turns is None else str(step.turns)
    waiting = str(step.waiting) if step.waiting else ""
    oldest = age(step.oldest) if step.waiting else ""
    for reason, number in step.lost:
        words = f"{number} lost as {reason}: {REASONS.get(reason, 'a reason without words')}"
        yield from textwrap.wrap(words, WIDTH, initial_indent="    - ", subsequent_indent="      ")
    yield f"{step.name:<11} {turns:>8} {waiting:>8} {oldest:>8}".rstrip()


def _policy(name: str, s: Snapshot) -> str:
    if s.live_version is None:
        return f"policy {name}: not made yet"
    return "\n".join([f"policy {name}: version {s.live_version} is live", *map(_version, s.versions)])


def _version(version: VersionView) -> str:
    parent = "the base model" if version.parent is None else f"from {version.parent}"
    line = f"  {version.number:>6}  {version.status:<8} {parent:<15} {age(version.age)} old"
    whole = f"{line}  {version.reason or ''}".rstrip()
    return "\n".join(textwrap.wrap(whole, WIDTH, subsequent_indent=" " * 18))


def _engines(s: Snapshot) -> str:
    if not s.engines:
        return "engines: none seen yet"
    lines = []
    for engine in s.engines:
        serves = "an unknown version" if engine.version is None else f"version {engine.version}"
        reason = f"  {engine.reason}" if engine.reason else ""
        lines.append(
            _cut(f"  {engine.url}  {engine.state}, serves {serves}, seen {age(engine.age)} ago{reason}")
        )
    return "\n".join(["engines", *lines])


def _processes(s: Snapshot) -> str:
    names = [*PROCESSES, *(one.name for one in s.heartbeats if one.name not in PROCESSES)]
    return "\n".join(["processes", *(_process(name, s.heartbeat(name)) for name in names)])


def _process(name: str, last: Heartbeat | None) -> str:
    if last is None:
        return f"  {name:<11} never reported"
    state = "alive" if last.alive else "gone"
    return _cut(f"  {name:<11} {state}, reported {age(last.age)} ago: {last.doing}")


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"
