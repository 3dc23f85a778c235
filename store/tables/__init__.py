"""Every table, a file a noun. Migrations are checked against this package (`alembic check`).

Wide, immutable facts (`turns`, `votes`, `scores`, `samples`) are apart from the one narrow, mutable row
that each turn has (`turn_states`): claims, the funnel and the status sentence read only the narrow one.
People read the views (`migrations/sql/`), which stay when tables change.
"""

from store.tables.base import metadata
from store.tables.contents import contents
from store.tables.learning import batches, hints, samples, steps
from store.tables.orphans import orphans
from store.tables.policies import engines, policies, publications, versions
from store.tables.processes import leases, processes
from store.tables.scoring import calls, demonstrations, feedback, scores, spending, votes
from store.tables.turns import sessions, set_aside, turn_states, turns

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
