"""What an answer was sampled with, what ended it, and which of its tokens may be trained."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from store import views

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

COLUMNS: dict[str, sa.types.TypeEngine[object]] = {
    "stopped_by": postgresql.JSON(),
    "sampling_defaults": postgresql.JSON(),
    "trained_tokens": postgresql.ARRAY(sa.Integer()),
}
CHANGED = {name: query for name, query in views.VERSION_2.items() if query != views.VERSION_1[name]}


def upgrade() -> None:
    for name, kind in COLUMNS.items():
        op.add_column("turns", sa.Column(name, kind))
    views.replace(op.get_bind(), CHANGED)


def downgrade() -> None:
    views.drop(op.get_bind(), views.VERSION_2)
    for name in COLUMNS:
        op.drop_column("turns", name)
    views.create(op.get_bind(), views.VERSION_1)
