"""The keys that a settings file may have, as data, and the words for a wrong one."""

import difflib
import json
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from dukou.settings.model import Config

_TYPE_WORDS = ((bool, "true or false"), (int, "whole number"), (float, "number"))


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of config.toml: its full name ("gateway.spool.fsync") and its field in the model."""

    key: str
    field: FieldInfo

    @property
    def variable(self) -> str:
        """The environment variable that overrides it."""
        return "DUKOU_" + self.key.replace(".", "_").upper()

    @property
    def default(self) -> object:
        """As TOML has it: secrets in the clear (a default holds none), paths as text, tuples as lists."""
        return _plain(self.field.get_default(call_default_factory=True))

    @property
    def description(self) -> str:
        return self.field.description or ""

    @property
    def secret(self) -> bool:
        return SecretStr in (self.field.annotation, *typing.get_args(self.field.annotation))

    @property
    def several(self) -> bool:
        """Whether the value is a list."""
        return typing.get_origin(self.field.annotation) in (list, tuple)

    @property
    def values(self) -> str:
        """What may stand there ("whole number > 0"), or "" where any text may."""
        if typing.get_origin(self.field.annotation) is typing.Literal:
            return " | ".join(typing.get_args(self.field.annotation))
        words = "".join(word for kind, word in _TYPE_WORDS if kind is self.field.annotation)
        bounds = " and ".join(bound for bound in map(_bound, self.field.metadata) if bound)
        return f"{words} {bounds}".strip()


@cache
def settings() -> Mapping[str, Setting]:
    """Every setting by its full key, in the order of the model."""
    return {setting.key: setting for setting in _walk(Config, "")}


def sections(keys: Collection[str]) -> frozenset[str]:
    """The tables that hold these keys: "gateway.spool.fsync" is in gateway.spool, and that in gateway."""
    parts = [key.split(".") for key in keys]
    return frozenset(".".join(part[:end]) for part in parts for end in range(1, len(part)))


def flatten(table: Mapping[str, object], known: Collection[str]) -> tuple[dict[str, object], list[str]]:
    """Values by full key, and a problem for each key or table that is not known."""
    values: dict[str, object] = {}
    problems: list[str] = []
    tables = sections(known)

    def visit(inner: Mapping[str, object], prefix: str) -> None:
        for name, value in inner.items():
            key = prefix + name
            if key in known:
                values[key] = value
            elif key in tables and isinstance(value, Mapping):
                visit(value, key + ".")
            elif key in tables:
                problems.append(f"{key}: must be a table: write [{key}] above its keys")
            elif isinstance(value, Mapping):
                problems.append(f"[{key}]: no such table; {nearest(key, tables)}")
            else:
                # The value stays unsaid: under a misspelt name it may be a secret.
                problems.append(f"{key}: no such key; {nearest(key, known)}")

    visit(table, "")
    return values, problems


def nearest(wrong: str, known: Collection[str]) -> str:
    """ "did you mean …?", or the list of what there is where nothing comes near."""
    if matches := difflib.get_close_matches(wrong, known, n=1, cutoff=0.5):
        return f"did you mean {matches[0]}?"
    same_table = [key for key in known if key.rpartition(".")[0] == wrong.rpartition(".")[0]]
    return "known are " + ", ".join(same_table or sorted({key.partition(".")[0] for key in known}))


def shown(value: object) -> str:
    """A value as TOML writes it, shortened; what stands before an @ in an address is left out."""
    text = literal(value)
    head, at, host = text.rpartition("@")
    if at and "//" in head:
        text = f"{head[: head.index('//') + 2]}***@{host}"
    return text if len(text) <= 80 else text[:77] + "..."


def literal(value: object) -> str:
    """The TOML text of a scalar or a list of scalars."""
    if isinstance(value, list):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _walk(model: type[BaseModel], prefix: str) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _walk(kind, f"{prefix}{name}.")
        else:
            yield Setting(prefix + name, field)


def _plain(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return str(value) if isinstance(value, PurePath) else value


def _bound(constraint: object) -> str:
    match constraint:
        case Gt(gt=limit):
            return f"> {limit}"
        case Ge(ge=limit):
            return f">= {limit}"
        case Lt(lt=limit):
            return f"< {limit}"
        case Le(le=limit):
            return f"<= {limit}"
    return ""
