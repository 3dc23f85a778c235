"""Forgetting what a tenant said and was told: `python -m dukou forget TENANT`.

Text and token ids go, wherever a table keeps them; what is left says that there was a turn, when, how long
it took and how it was scored. Records that Postgres refused (`set_aside`) name no tenant: they stay.
"""

import argparse
import sys

from sqlalchemy import Connection, text

from dukou.errors import DukouError, reports_errors


class TenantInUseError(DukouError):
    """A batch that waits for its step has turns of the tenant."""


# How many turns of the tenant wait in a closed batch for its step.
_BATCHED = text("""
    select count(*) from turn_states where tenant = :tenant and stage = 'batched'
""")
# Takes what was said out of the tenant's turns.
_CLEAR_TURNS = text("""
    update turns set
        response_text = null, reasoning_text = null, tool_calls = null, error = null, sampling = null,
        user_name = null, prompt_ids = null, prompt_tokens = null, response_ids = null,
        response_logprobs = null, trained_tokens = null, matched_stop = null, stopped_by = null,
        answer_digest = null, trainable = false,
        untrainable_reason = coalesce(untrainable_reason, 'forgotten')
    where tenant = :tenant
""")
# Takes it out of the other tables, in this order: samples point to hints.
_CLEAR_THE_REST = tuple(
    text(statement)
    for statement in (
        """
        update turn_states set stage = 'dropped', reason = 'forgotten', changed_at = now()
        where tenant = :tenant and stage in ('awaiting_next', 'scorable', 'scored')
        """,
        "delete from contents where tenant = :tenant",
        """
        update votes v set raw = null, hint = null
        from turns t
        where t.id = v.turn_id and t.tenant = :tenant
        """,
        "update scores s set hint = null from turns t where t.id = s.turn_id and t.tenant = :tenant",
        "update samples s set hint_id = null from turns t where t.id = s.turn_id and t.tenant = :tenant",
        "delete from hints h using turns t where t.id = h.turn_id and t.tenant = :tenant",
        "delete from demonstrations d using turns t where t.id = d.turn_id and t.tenant = :tenant",
        """
        update feedback set comment = null, correction = null, outcome = null, rater = null
        where tenant = :tenant
        """,
    )
)


def forget(connection: Connection, tenant: str) -> int:
    """Removes the tenant's text, in the caller's transaction; returns how many turns there are of it.

    Raises:
        TenantInUseError: nothing was changed.
    """
    given = {"tenant": tenant}
    if connection.scalar(_BATCHED, given):
        raise TenantInUseError(
            f"a batch that waits for its step has turns of {tenant}: let the learner train it, then try again"
        )
    turns = connection.execute(_CLEAR_TURNS, given).rowcount
    for statement in _CLEAR_THE_REST:
        connection.execute(statement, given)
    return turns


@reports_errors
def main() -> int:
    parser = argparse.ArgumentParser(prog="dukou forget", description=__doc__)
    parser.add_argument("tenant", help="whose text goes")
    asked = parser.parse_args()
    from dukou.settings.load import load_config
    from dukou.store import database

    engine = database.engine(load_config())
    try:
        with engine.begin() as connection:
            turns = forget(connection, asked.tenant)
    finally:
        engine.dispose()
    print(f"forgot the text of {turns} turns of {asked.tenant}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
