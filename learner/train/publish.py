"""Publishing is moving a pointer: the gateway's reconciler makes every engine match it."""

from sqlalchemy import Engine

from store import policies, steps, versions
from store.config_model import Config


def make_live(engine: Engine, config: Config, version: int) -> None:
    """Makes a version the live one of the configured policy, forward or back.

    Raises store.versions.UnknownVersionError or RefusedVersionError.
    """
    with engine.begin() as connection:
        policy = policies.get(connection, config.policy.name)
        if policy is None:
            raise versions.UnknownVersionError(f"there is no policy {config.policy.name!r} yet")
        versions.set_live(connection, policy.id, version)


def newest_unpublished(engine: Engine, config: Config) -> int | None:
    """The newest version that follows from the live one and was never live; None where there is none."""
    with engine.connect() as connection:
        policy = policies.get(connection, config.policy.name)
        if policy is None:
            return None
        head = steps.head(connection, policy.id, policy.live_version)
    return None if head == policy.live_version else head
