"""Side-by-side measurements. Each prints a table on stderr and one line of JSON last on stdout.

A bench has settings and a state of its own: importing this package takes all that changes settings out of the
process's environment, so that no bench, nor a process that one starts, can forget to.
"""

import os
from typing import TYPE_CHECKING

from dukou.settings.environment import stand_alone

if TYPE_CHECKING:
    from dukou.settings.paths import StatePaths

_TAKEN = stand_alone()


def installed() -> "StatePaths":
    """The folders of the user's own configuration: where software is installed, once for all benches.

    Raises ConfigError where that configuration is wrong.
    """
    from dukou.settings.load import load_config
    from dukou.settings.paths import StatePaths

    return StatePaths.for_config(load_config(environ={**os.environ, **_TAKEN}))
