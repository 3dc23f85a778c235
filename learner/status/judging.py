"""What the judge and the teacher did lately, and what they cost: a block of `learner status`."""

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection

from dukou.settings.learning import JudgeSettings
from dukou.store import calls, feedback
from dukou.store.calls import Caps, Costs, OutcomeCount
from dukou.store.feedback import FeedbackCounts

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
