"""Inspects a version before an engine gets it, and compares the engine's tensors with it afterwards.

A version's folder is read whole once, however many engines load it and however often.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dukou.store.versions import ProbePrompt, Version
from gateway.reconcile.checkpoint import MARKER, check, is_tied
from gateway.reconcile.control import Control, ControlError
from gateway.reconcile.probe import parse, vocabulary
from gateway.reconcile.sums import Agreement, compare, expected
from gateway.reconcile.tensors import Stored, read_folder, stored

_UNKNOWN_KIND = "its checksums are not those of the files: a GPU's, sliced or quantised"


@dataclass(frozen=True, slots=True)
class Inspected:
    """A version that may be sent to engines. No prompts: it has no probe."""

    prompts: list[ProbePrompt]
    tensors: Mapping[str, Stored]
    tied: bool


class Inspector:
    """Remembers the last version that it found good, and which engines' checksums can be compared."""

    def __init__(self, *, checksums: bool) -> None:
        self._checksums = checksums
        self._good: tuple[object, Inspected] | None = None
        self._comparable: dict[str, bool] = {}
        self._names: dict[str, frozenset[str]] = {}  # of each engine's own tensors
        self._expected: tuple[Inspected | None, frozenset[str], dict[str, str]] = (None, frozenset(), {})

    def inspect(self, version: Version, base: Path) -> Inspected:
        """Raises BadCheckpointError or BadProbeError, which says why no engine may get the version."""
        key = _state_of(version)
        if self._good is None or self._good[0] != key:
            self._good = (key, _inspect(version, base))
        return self._good[1]

    def prepare(self, control: Control, inspected: Inspected, base: Path, *, has_base: bool) -> None:
        """Does beforehand what need not be done while users wait for a load.

        On an engine that has the base model it is seen whether it computes checksums as the files have them.
        """
        if not self._checksums:
            return
        if has_base and control.url not in self._comparable:
            agreement = self._calibrated(control, base)
            self._comparable[control.url] = agreement is not None and agreement.same > 0
        if self._comparable.get(control.url):
            self._sums(inspected, self._names.get(control.url, frozenset()))

    def agreement(self, control: Control, inspected: Inspected) -> Agreement | str:
        """The agreement of the engine's tensors with a version's; a text: why they could not be compared.

        Raises ControlError.
        """
        if not self._checksums:
            return "publish.checksums is off"
        if self._comparable.get(control.url) is False:
            return _UNKNOWN_KIND
        found = self._measure(control, inspected)
        if found is None or (found.same == 0 and control.url not in self._comparable):
            return _UNKNOWN_KIND
        return found

    def _calibrated(self, control: Control, base: Path) -> Agreement | None:
        try:
            return self._measure(control, Inspected([], stored(base), is_tied(base)))
        except (ControlError, KeyError, OSError, ValueError):
            return None

    def _measure(self, control: Control, inspected: Inspected) -> Agreement | None:
        ranks = control.checksums()
        names = self._names[control.url] = frozenset(ranks[0] if ranks else ())
        return compare(self._sums(inspected, names), ranks)

    def _sums(self, inspected: Inspected, names: frozenset[str]) -> dict[str, str]:
        """Computed once for a version: reads every byte of it."""
        known, of, sums = self._expected
        if known is not inspected or of != names:
            sums = expected(names, inspected.tensors, tied=inspected.tied)
            self._expected = (inspected, names, sums)
        return sums


def _inspect(version: Version, base: Path) -> Inspected:
    if version.version == 0:
        return Inspected([], stored(base), is_tied(base))
    tensors = check(Path(version.path), version.form, base)
    tied = is_tied(base)
    if version.probe is None:
        return Inspected([], tensors, tied)
    return Inspected(parse(version.probe, vocabulary(read_folder(base))), tensors, tied)


def _state_of(version: Version) -> object:
    marker = Path(version.path) / MARKER
    written = marker.stat().st_mtime_ns if marker.is_file() else None
    return version.policy_id, version.version, version.path, written
