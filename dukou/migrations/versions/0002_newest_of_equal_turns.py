"""Lineage's indexes end with the time: the newest of equal turns are read, and no others."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS = {
    "ix_turns_lineage": "history_hash",
    "ix_turns_prompt": "prompt_hash",
    "ix_turns_exchange": "exchange_hash",
}


def upgrade() -> None:
    for name, column in COLUMNS.items():
        op.drop_index(name, "turns")
        op.create_index(name, "turns", ["tenant", column, "started_at"])


def downgrade() -> None:
    for name, column in COLUMNS.items():
        op.drop_index(name, "turns")
        op.create_index(name, "turns", ["tenant", column])
