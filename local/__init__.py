"""The old name of `dukou.local`, so that `python -m local.engine` and the like work for one more release."""

from dukou.local import __path__ as __path__
