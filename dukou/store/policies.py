"""Policies: what learns, and the base model that is its version 0."""

from dataclasses import dataclass

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert

from dukou.settings.model import Config
from dukou.settings.paths import StatePaths
from dukou.store.tables import policies, versions

DEFAULT_MODEL = "smollm2-135m"  # the folder under `models/` that `make engine` makes


@dataclass(frozen=True, slots=True)
class Policy:
    id: int
    name: str
    base_model: str  # path of the model that is version 0
    live_version: int


def default(connection: Connection, config: Config) -> Policy:
    """The configured policy; made, with the base model as its live version 0, where there is none yet."""
    model = config.engine.model_path or str(StatePaths.for_config(config).models / DEFAULT_MODEL)
    return get_or_create(connection, config.policy.name, config.policy.scope, model)


def get_or_create(connection: Connection, name: str, scope: str, base_model: str) -> Policy:
    """The policy of this name; made, with `base_model` as its live version 0, where there is none yet.

    Several processes may ask at once. An existing policy keeps the base model that it began with.
    """
    found = get(connection, name)
    if found is not None:
        return found
    connection.execute(
        insert(policies)
        .values(name=name, scope=scope, base_model=base_model)
        .on_conflict_do_nothing(index_elements=[policies.c.name])
    )
    made = get(connection, name)
    if made is None:
        raise LookupError(f"policy {name!r} was made and is not there")
    first = insert(versions).values(
        policy_id=made.id, version=0, path=made.base_model, form="full", status="live", live_at=func.now()
    )
    connection.execute(first.on_conflict_do_nothing())
    return made


def get(connection: Connection, name: str) -> Policy | None:
    query = select(policies.c.id, policies.c.name, policies.c.base_model, policies.c.live_version)
    row = connection.execute(query.where(policies.c.name == name)).one_or_none()
    return None if row is None else Policy(*row)
