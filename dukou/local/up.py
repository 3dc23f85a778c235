"""`make up`: start every part and stay until Ctrl-C or `make down`."""

import os
import signal
import sys
import threading

from dukou.errors import reports_errors
from dukou.local.stack import Stack
from dukou.settings.environment import sentence
from dukou.settings.load import load
from dukou.settings.paths import StatePaths


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@reports_errors
def main() -> int:
    loaded = load()
    loaded.warn()
    config = loaded.config
    if said := sentence(loaded.from_environment):
        say(said)
    pid_file = StatePaths.for_config(config).run / "up.pid"
    pid_file.parent.mkdir(parents=True, exist_ok=True)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    base_url = f"http://{config.gateway.host}:{config.gateway.port}/v1"
    stack = Stack(config, os.environ, say)
    pid_file.write_text(str(os.getpid()))
    try:
        stack.start()
        say(f"clients: base_url={base_url}   what it is doing: make status")
        while not stopped.wait(1.0):
            stack.watch()
    finally:
        say("stopping")
        stack.stop()
        pid_file.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
