"""What an answer was sampled with, what ended it, and which of its tokens may be trained."""

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

COLUMNS: dict[str, sa.types.TypeEngine[Any]] = {
    "stopped_by": postgresql.JSON(),
    "sampling_defaults": postgresql.JSON(),
    "trained_tokens": postgresql.ARRAY(sa.Integer()),
}
SQL = Path(__file__).resolve().parents[1] / "sql"
# Each is dropped before those that it reads.
VIEWS = (
    "preference, demonstration, version, cost, funnel_reason, funnel, funnel_stage, progress, trajectory,"
    " conversation, turn"
)


def upgrade() -> None:
    for name, kind in COLUMNS.items():
        op.add_column("turns", sa.Column(name, kind))
    run("0003_views.sql")


def downgrade() -> None:
    op.execute(f"drop view if exists {VIEWS}")
    for name in COLUMNS:
        op.drop_column("turns", name)
    run("0001_views.sql")


def run(script: str) -> None:
    """Runs the statements of a file in dukou/migrations/sql, in the migration's transaction."""
    statements = (SQL / script).read_text(encoding="utf-8")
    op.get_bind().exec_driver_sql(statements, execution_options={"no_parameters": True})
