"""`python -m dukou engine install|models|start|check`: the SGLang of one machine.

install   makes `<state>/engine`, SGLang's own environment (does nothing where it is whole)
models    makes the small models in `<state>/models`
start     serves the configured model until SIGTERM, and says why where it dies
check     says whether all of this is there and whether an engine answers
"""

import argparse
import signal
import sys
import threading
from collections.abc import Callable

from dukou.errors import reports_errors
from dukou.local.engine import install as engine_install
from dukou.local.engine import models as engine_models
from dukou.local.engine import recommends
from dukou.local.engine.start import EngineDiedError, death, launch, model_path, stop, wait_ready
from dukou.settings.load import load_config
from dukou.settings.model import Config
from dukou.settings.paths import StatePaths
from gateway.reconcile.sglang import Control


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def install(config: Config) -> int:
    engine_install.install(StatePaths.for_config(config).engine_env, say)
    return 0


def models(config: Config) -> int:
    paths = StatePaths.for_config(config)
    engine_models.make(paths.engine_env, paths.models, say)
    return 0


def serve(config: Config) -> int:
    """Returns 0 where it was told to stop, 1 where the engine died."""
    told = threading.Event()
    process = launch(config)
    say(recommends.told(config))

    def end(*_: object) -> None:
        told.set()
        process.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    try:
        wait_ready(process, config, say)
        why = death(config, process.wait())
    except EngineDiedError as error:
        why = str(error)
        stop(process)
    if told.is_set():
        return 0
    say(why)
    return 1


def check(config: Config) -> int:
    """Returns 1 where something is missing that `start` needs."""
    env, model = StatePaths.for_config(config).engine_env, model_path(config)
    installed, made = engine_install.is_installed(env), engine_models.is_made(model)
    say(f"environment: {env} {'is whole' if installed else 'is missing or out of date: run `make engine`'}")
    say(f"model: {model} {'is there' if made else 'is missing: run `make engine`'}")
    for url in config.engine.urls:
        with Control(url, config.engine.api_key.get_secret_value()) as control:
            say(f"{url}: {control.health()}")
    return 0 if installed and made else 1


VERBS: dict[str, Callable[[Config], int]] = {
    "install": install,
    "models": models,
    "start": serve,
    "check": check,
}


@reports_errors
def main() -> int:
    parser = argparse.ArgumentParser(
        prog="dukou engine",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("verb", choices=VERBS)
    options = parser.parse_args()
    return VERBS[options.verb](load_config())


if __name__ == "__main__":
    raise SystemExit(main())
