"""Settings: from a TOML file, the environment and the defaults of `dukou/settings/model.py`.

What comes later wins: defaults, the file, `DUKOU_<SECTION>_<KEY>`. Everything that is wrong is said at once.

`${ENV}`, `${ENV:-default}` and `$$` in the strings of a settings file.

The one error of wrong settings, and what is right in the place of a wrong value.
"""

import json
import logging
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dukou.errors import DukouError
from dukou.settings import openclaw
from dukou.settings.environment import FromEnvironment
from dukou.settings.keys import Setting, flatten, nearest, settings, shown
from dukou.settings.model import Config

_REFERENCE = re.compile(
    r"""\$(?: (?P<dollar>\$) | \{ (?: (?P<name>[A-Za-z_]\w*) (?: :-(?P<default>[^}]*) )? \} )? )""",
    re.ASCII | re.VERBOSE,
)


class ExpansionError(DukouError):
    """Says which variable is missing, or what is wrong with the reference; never a variable's value."""


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Replaces the references, once: what a variable holds is not looked at again.

    As in a shell, `:-` also applies to a variable that is set and empty. A lone `$` stays.
    Raises ExpansionError, naming every variable that is missing.
    """
    missing = dict.fromkeys(
        match["name"]
        for match in _REFERENCE.finditer(text)
        if match["name"] and match["default"] is None and match["name"] not in environ
    )
    if missing:
        names, verb = " and ".join(missing), "is" if len(missing) == 1 else "are"
        example = f"${{{next(iter(missing))}:-default}}"
        raise ExpansionError(f"{names} {verb} not set in the environment; export it, or write {example}")
    return _REFERENCE.sub(lambda match: _replacement(match, environ), text)


def expand_items(value: object, environ: Mapping[str, str]) -> object:
    """A list's items, expanded. Text with a reference, or in place of the list, is comma-separated items."""
    if isinstance(value, str):
        return split(expand(value, environ))
    if not isinstance(value, list):
        return value
    items: list[object] = []
    for item in value:
        if isinstance(item, str):
            items += split(expand(item, environ)) if "${" in item else [expand(item, environ)]
        else:
            items.append(item)
    return items


def used(value: object, environ: Mapping[str, str]) -> list[str]:
    """The variables whose content stands in a value that `expand` or `expand_items` expanded."""
    if isinstance(value, list):
        return list(dict.fromkeys(name for item in value for name in used(item, environ)))
    found = _REFERENCE.finditer(value) if isinstance(value, str) else ()
    return list(dict.fromkeys(m["name"] for m in found if m["name"] and environ.get(m["name"])))


def split(text: str) -> list[object]:
    """Comma-separated items without the empty ones, or a JSON list where the text begins with `[`.

    Raises ExpansionError for text that begins so and is not one.
    """
    if text.lstrip().startswith("["):
        try:
            return list(json.loads(text))
        except ValueError:
            raise ExpansionError("begins with [ and is not a JSON list") from None
    return [item.strip() for item in text.split(",") if item.strip()]


def _replacement(match: re.Match[str], environ: Mapping[str, str]) -> str:
    if match["dollar"]:
        return "$"
    if match["name"] is None:
        raise ExpansionError("has ${ without NAME} or NAME:-default} after it; a plain dollar sign is $$")
    if match["default"] is not None:
        if "${" in match["default"]:
            raise ExpansionError("has a reference inside a reference's default, which is not supported")
        return environ.get(match["name"]) or match["default"]
    return environ[match["name"]]


_RIGHT = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "finite_number": "must be a finite number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "missing": "must have 2 items",  # only a tuple can lack one: every key has a default
    "path_type": "must be a path in quotes",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_short": "must not be empty",
    "string_type": "must be text in quotes",
    "too_long": "must have at most {max_length} items",
    "too_short": "must have at least {min_length} items",
    "tuple_type": "must be a list",
    "value_error": "{error}",
}


class ConfigError(DukouError):
    """The settings are wrong; the text names the file and every problem, and holds no secret."""

    exit_status = 2

    def __init__(self, source: str, problems: list[str]) -> None:
        self.source, self.problems = source, tuple(problems)
        lines = [f"{len(problems)} problems", *(f"  {problem}" for problem in problems)]
        super().__init__(f"{source}: " + "\n".join(lines if len(problems) > 1 else problems))


def what_is_right(detail: ErrorDetails) -> str:
    """Pydantic's finding in the words of a settings file, where pydantic's own speak of Python."""
    kind = detail["type"]
    return _RIGHT[kind].format(**detail.get("ctx", {})) if kind in _RIGHT else detail["msg"]


log = logging.getLogger(__name__)

#: Variables with the prefix that are no overrides: the file's path, and what gateway.keys refers to.
OTHER_VARIABLES = ("DUKOU_CONFIG", "DUKOU_KEYS", "DUKOU_ADMIN_KEYS", "DUKOU_TEST_STATE")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Valid settings, and what the operator should know about them."""

    config: Config
    warnings: tuple[str, ...]
    from_environment: tuple[FromEnvironment, ...] = ()

    def warn(self) -> None:
        """Puts the warnings into the log."""
        for warning in self.warnings:
            log.warning("%s", warning)


@dataclass(frozen=True, slots=True)
class _Given:
    """A value that somebody set, under the name that they wrote."""

    value: object
    name: str
    from_variable: bool = False


def load_config(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """As `load`, with the warnings in the log."""
    loaded = load(path, environ)
    loaded.warn()
    return loaded.config


def load(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Loaded:
    """The file is `path`, else $DUKOU_CONFIG, else ./config.toml where there is one, else none.

    Raises ConfigError with everything that is wrong.
    """
    environ = os.environ if environ is None else environ
    file = _find(path, environ)
    if file is None:
        return _build({}, environ, "settings", Path.cwd())
    return _build(_read(file), environ, str(file), file.absolute().parent)


def from_mapping(table: Mapping[str, object], environ: Mapping[str, str] | None = None) -> Config:
    """Settings without a file, as for a test; the environment is empty unless it is given.

    Raises ConfigError with everything that is wrong.
    """
    return _build(table, environ or {}, "settings", Path.cwd()).config


def _find(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    if path is None and environ.get("DUKOU_CONFIG"):
        path = Path(environ["DUKOU_CONFIG"])
    if path is None and Path("config.toml").is_file():
        path = Path("config.toml")
    return path


def _read(file: Path) -> Mapping[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(file), [f"cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError(str(file), ["is not UTF-8 text"]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(file), [f"is not TOML: {error}"]) from None


def _build(table: Mapping[str, object], environ: Mapping[str, str], source: str, folder: Path) -> Loaded:
    theirs = openclaw.translate({k: v for k, v in table.items() if k in openclaw.SECTIONS})
    ours, problems = flatten({k: v for k, v in table.items() if k not in openclaw.SECTIONS}, settings())
    problems += theirs.problems
    problems += [
        f"{name} and {key} set the same thing: keep {key}"
        for key, (name, _) in theirs.given.items()
        if key in ours
    ]
    given = {setting.key: _Given(setting.default, setting.key) for setting in settings().values()}
    given |= {key: _Given(value, name) for key, (name, value) in theirs.given.items()}
    given |= {key: _Given(value, key) for key, value in ours.items()}
    given |= _overrides(environ, problems)
    config = _validate(given, environ, problems)
    if config is None or problems:
        raise ConfigError(source, problems)
    config = config.model_copy(update={"state_dir": folder / config.state_dir.expanduser()})
    return Loaded(config, (*theirs.warnings, *_exposure(config)), _from_environment(given, environ))


def _from_environment(given: Mapping[str, _Given], environ: Mapping[str, str]) -> tuple[FromEnvironment, ...]:
    """In the order of the model."""
    return tuple(
        FromEnvironment(key, variable)
        for key in settings()
        for variable in ([given[key].name] if given[key].from_variable else used(given[key].value, environ))
    )


def _overrides(environ: Mapping[str, str], problems: list[str]) -> dict[str, _Given]:
    keys = {setting.variable: setting.key for setting in settings().values()}
    found: dict[str, _Given] = {}
    for variable in sorted(environ):
        if variable in keys:
            found[keys[variable]] = _Given(environ[variable], variable, from_variable=True)
        elif variable.startswith("DUKOU_") and variable not in OTHER_VARIABLES:
            problems.append(f"{variable}: no such variable; {nearest(variable, [*keys, *OTHER_VARIABLES])}")
    return found


def _validate(given: Mapping[str, _Given], environ: Mapping[str, str], problems: list[str]) -> Config | None:
    """None where the model refuses. What cannot be expanded is a problem; its default stands in."""
    values: dict[str, object] = {}
    for key, item in given.items():
        try:
            values[key] = _expanded(settings()[key], item, environ)
        except ExpansionError as error:
            problems.append(_sentence(settings()[key], item, str(error)))
    try:
        return Config.model_validate(_nested(values))
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems += dict.fromkeys(_problem(detail, given) for detail in details)
        return None


def _nested(values: Mapping[str, object]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *tables, name = key.split(".")
        inner = tree
        for table in tables:
            inner = inner.setdefault(table, {})
        inner[name] = value
    return tree


def _expanded(setting: Setting, item: _Given, environ: Mapping[str, str]) -> object:
    if item.from_variable:
        text = str(item.value)
        return split(text) if setting.several else text
    if setting.several:
        return expand_items(item.value, environ)
    return expand(item.value, environ) if isinstance(item.value, str) else item.value


def _problem(detail: ErrorDetails, given: Mapping[str, _Given]) -> str:
    right = what_is_right(detail)
    loc = [str(part) for part in detail["loc"]]
    for end in range(len(loc), 0, -1):
        if (key := ".".join(loc[:end])) in given:
            return _sentence(settings()[key], given[key], right)
    return f"{'.'.join(loc)}: {right}"


def _sentence(setting: Setting, item: _Given, right: str) -> str:
    value = "" if setting.secret else f" = {shown(item.value)}"
    default = "" if setting.secret else f"; default {shown(setting.default)}"
    return f"{item.name}{value}: {right} ({setting.description}{default})"


def _exposure(config: Config) -> list[str]:
    if not config.gateway.open_to_everybody:
        return []
    return [
        f"gateway.host = {shown(config.gateway.host)} without gateway.keys: whoever reaches the port can use "
        "the engine, and what they say is trained on; set DUKOU_KEYS"
    ]
