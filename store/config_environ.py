"""Which settings the environment sets, in words. No value is said: it may be a secret."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FromEnvironment:
    """A setting whose value an environment variable gave: as an override, or through `${NAME}`."""

    setting: str
    variable: str


def sentence(found: Iterable[FromEnvironment]) -> str | None:
    """One line that names each setting with its variable; None where the environment sets nothing."""
    named = ", ".join(f"{one.setting} ({one.variable})" for one in found)
    return f"the environment sets: {named}" if named else None
