"""Publishing by itself: what becomes live, what is tried first, and what is taken back.

It only moves pointers: the gateway's reconciler makes every engine match them.
"""

from datetime import datetime

from sqlalchemy import Connection, Engine

from dukou.settings.model import Config
from dukou.store import batches, policies, publishing, versions, watch
from dukou.store.publishing import Trial
from learner.train import guards
from learner.train.guards import worse

FOLLOWS = "the gateway's reconciler loads it into the engines"


def advance(engine: Engine, config: Config, now: datetime, *, asked: bool, look: bool = True) -> str | None:
    """One move, by itself or `asked`; a line about it, None where there is none to make.

    What is pinned stays. A live version that is worse than the one before is rolled back also where
    publish.automatic is off. `look`: compare versions now; it reads some thousand turns, so not every second.
    """
    with engine.begin() as connection:
        policy = policies.get(connection, config.policy.name)
        if policy is None:
            return None
        state = publishing.pointers(connection, policy.id)
        if state.pinned:
            return None
        line = _taken_back(connection, policy.id, state.live, config) if look else None
        if line is not None or not (asked or config.publish.automatic):
            return line
        if state.trial is None:
            return _next(connection, policy.id, state.live, config, asked=asked)
        return _after_trial(connection, policy.id, state.live, state.trial, config, now) if look else None


def _taken_back(connection: Connection, policy_id: int, live: int, config: Config) -> str | None:
    before = publishing.before(connection, policy_id, live)
    if before is None or config.watch.turns == 0:
        return None
    problem = _worse(connection, policy_id, live, before, config)
    if problem is None:
        return None
    to = publishing.rollback(connection, policy_id, before, problem)
    return f"rolled back version={live} to version={to} because {problem}"


def _after_trial(
    connection: Connection, policy_id: int, live: int, trial: Trial, config: Config, now: datetime
) -> str | None:
    problem = _worse(connection, policy_id, trial.version, live, config)
    if problem is not None:
        versions.refuse(connection, policy_id, trial.version, f"on trial {problem}")
        return f"refused version={trial.version} because on trial {problem}"
    scored = watch.figures(connection, policy_id, trial.version).score.count
    over = trial.since is not None and (now - trial.since).total_seconds() >= config.publish.trial_seconds
    if not over and (config.watch.turns == 0 or scored < config.watch.turns):
        return None
    publishing.publish(connection, policy_id, trial.version)
    return f"published version={trial.version} after its trial ({scored} scored turns): {FOLLOWS}"


def _next(connection: Connection, policy_id: int, live: int, config: Config, *, asked: bool) -> str | None:
    version = publishing.newest_unpublished(connection, policy_id)
    if version is None or (not asked and _too_soon(connection, policy_id, live, config)):
        return None
    problem = guards.refusal(batches.measured(connection, policy_id, version), config.publish)
    if problem is not None:
        versions.refuse(connection, policy_id, version, problem)
        return f"refused version={version} because {problem}"
    share = config.publish.trial_share
    if share > 0 and versions.get(connection, policy_id, version).form == "adapter":
        publishing.try_out(connection, policy_id, version, share)
        return f"trying version={version} on {share:.0%} of the sessions: {FOLLOWS}"
    publishing.publish(connection, policy_id, version)
    return f"published version={version}: {FOLLOWS}"


def _too_soon(connection: Connection, policy_id: int, live: int, config: Config) -> bool:
    limit = config.publish.max_cold_share
    return limit > 0 and watch.why_wait(watch.cache_cost(connection, policy_id, live), limit) is not None


def _worse(connection: Connection, policy_id: int, version: int, than: int, config: Config) -> str | None:
    now, before = (watch.figures(connection, policy_id, number) for number in (version, than))
    return worse(now, before, config.watch)
