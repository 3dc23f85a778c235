"""Every table, a file a noun. Migrations are checked against this package (`alembic check`).

Wide, immutable facts (`turns`, `votes`, `scores`, `samples`) are apart from the one narrow, mutable row
that each turn has (`turn_states`): claims, the funnel and the status sentence read only the narrow one.
People read the views (`dukou/migrations/sql/`), which stay when tables change.
"""

from dukou.store.tables.base import metadata
from dukou.store.tables.learning import batches, hints, samples, steps
from dukou.store.tables.policies import engines, leases, policies, processes, publications, versions
from dukou.store.tables.scoring import calls, demonstrations, feedback, scores, spending, votes
from dukou.store.tables.turns import contents, orphans, sessions, set_aside, turn_states, turns

__all__ = [
    "batches",
    "calls",
    "contents",
    "demonstrations",
    "engines",
    "feedback",
    "hints",
    "leases",
    "metadata",
    "orphans",
    "policies",
    "processes",
    "publications",
    "samples",
    "scores",
    "sessions",
    "set_aside",
    "spending",
    "steps",
    "turn_states",
    "turns",
    "versions",
    "votes",
]
