"""What every table shares: naming convention and column types."""

from sqlalchemy import JSON, Column, DateTime, MetaData, func

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Timestamp = DateTime(timezone=True)
Json = JSON(none_as_null=True)  # None is NULL, never the JSON word null


def now(name: str) -> Column[object]:
    """A time that Postgres fills in."""
    return Column(name, Timestamp, nullable=False, server_default=func.now())
