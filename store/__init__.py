"""The old name of `dukou.store`, so that `python -m store.forget` works for one more release."""

from dukou.store import __path__ as __path__
