"""Decides whether learning is frozen. Nothing is stored for it: the newest batches say so by how they ended.

A batch that ended as `drift`, or so many in a row that were skipped, freeze their policy until the live
pointer moves (a rollback) or somebody changes `[guard]`: both are decisions of a person, and both are seen
here without a switch to forget.
"""

from collections.abc import Sequence

from sqlalchemy import Connection

from dukou.settings.learning import GuardSettings
from dukou.store import batches
from dukou.store.batches import EndedBatch
from dukou.store.policies import Policy

#: Skipped batches in a row after which a person should look.
SKIPPED_IN_A_ROW = 3


def why_frozen(connection: Connection, policy: Policy, guard: GuardSettings) -> str | None:
    """Why nothing of this policy is trained now; None where learning goes on."""
    newest = batches.newest_ended(connection, policy.id, SKIPPED_IN_A_ROW)
    return why_frozen_after(newest, policy.live_version, guard)


def why_frozen_after(newest: Sequence[EndedBatch], live_version: int, guard: GuardSettings) -> str | None:
    """Why nothing is trained after these batches, newest first; None where learning goes on. Pure."""
    here = [b for b in newest if b.live_version == live_version and b.guard == guard]
    if not here or here[0] != newest[0]:
        return None
    if here[0].reason == "drift":
        return f"learning is frozen: {here[0].detail}"
    if len(here) == SKIPPED_IN_A_ROW and all(b.reason in ("not_finite", "grad_spike") for b in here):
        return f"learning is frozen: the last {SKIPPED_IN_A_ROW} batches were skipped ({here[0].detail})"
    return None
