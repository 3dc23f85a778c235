"""`make down`: stop what `make up` started, and wait for it."""

import os
import signal
import sys
import time

from dukou.errors import reports_errors
from dukou.settings.load import load_config
from dukou.settings.paths import StatePaths
from dukou.store import embedded


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@reports_errors
def main() -> int:
    paths = StatePaths.for_config(load_config())
    pid_file = paths.run / "up.pid"
    if pid_file.exists():
        pid = int(pid_file.read_text())
        if is_alive(pid):
            os.kill(pid, signal.SIGTERM)
            while is_alive(pid):
                time.sleep(0.1)
    if embedded.is_running(paths.root):
        embedded.stop(paths.root)
    print("everything is stopped", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
