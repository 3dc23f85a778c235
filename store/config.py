"""Settings: from a TOML file, the environment and the defaults of `store/config_model.py`.

What comes later wins: defaults, the file, `DUKOU_<SECTION>_<KEY>`. Everything that is wrong is said at once.
"""

import logging
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from store import openclaw
from store.config_environ import FromEnvironment
from store.config_error import ConfigError, what_is_right
from store.config_expand import ExpansionError, expand, expand_items, split, used
from store.config_keys import Setting, flatten, nearest, settings, shown
from store.config_model import Config

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
