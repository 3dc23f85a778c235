"""Which settings the environment sets, in words. No value is said: it may be a secret.

An environment in which nobody says anything about Dukou's settings or its database.

Benches, the demo and the tests have settings and states of their own. A variable that their user has set
for a real Dukou (DUKOU_STATE_DIR, DATABASE_URL, …) would win over them, and they would write where real data
lies.
Only the standard library is imported: helpers that are measured import this, too.
"""

import os
from collections.abc import Iterable, Mapping, MutableMapping
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


#: PG…: libpq's, which reach past a URL (PGHOSTADDR, PGPORT, PGOPTIONS, PGSERVICE).
_PREFIXES = ("DUKOU_", "PG")
#: What the defaults of settings refer to; a test holds this list and the defaults together.
_NAMES = frozenset({"DATABASE_URL", "TAOTOKEN_API_KEY"})
#: It says where the tests find installed software, and changes no setting.
_UNRELATED = frozenset({"DUKOU_TEST_STATE"})


def changes_settings(name: str) -> bool:
    """Whether a variable of this name can change a setting or a connection to Postgres."""
    return name not in _UNRELATED and (name in _NAMES or name.startswith(_PREFIXES))


def without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without all that changes settings."""
    return {name: value for name, value in environ.items() if not changes_settings(name)}


def stand_alone(environ: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """Takes what changes settings out of this process's environment, so of its children's too; returns it."""
    return {name: environ.pop(name) for name in list(environ) if changes_settings(name)}
