"""Loads one version into one engine and verifies that the engine has it.

Full weights: pause in place → load without flush → continue → read back → verify. Running requests go on with
the new weights over their old caches; whatever comes later carries the version as `cache_salt`.
An adapter: load beside the old one → probe. No request waits.

Inspects a version before an engine gets it, and compares the engine's tensors with it afterwards.

A version's folder is read whole once, however many engines load it and however often.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dukou.store.versions import ProbePrompt, Version
from gateway.reconcile.checkpoint import MARKER, Stored, check, is_tied, read_folder, stored
from gateway.reconcile.compare import Agreement, compare, compare_checksums, expected, parse, vocabulary
from gateway.reconcile.decide import Failed, Loaded, Outcome, Refused, Target, View
from gateway.reconcile.sglang import (
    Control,
    ControlError,
    EngineUnreachableError,
    HalfUpdatedError,
)

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
        return compare_checksums(self._sums(inspected, names), ranks)

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


@dataclass(frozen=True, slots=True)
class Verification:
    """How a loaded version is verified."""

    inspector: Inspector
    tolerance: float  # nats by which the version's probe may differ, on average


def load(
    control: Control,
    view: View,
    target: Target,
    version: Inspected,
    verification: Verification,
    swapped: Callable[[], None],
) -> Outcome:
    """Loads a version and verifies it.

    `swapped` is called as soon as the engine goes on under full weights, before they are verified.
    """
    if target.adapter is None:
        failed = _load_full(control, target)
        if failed is None:
            swapped()
    else:
        failed = _load_adapter(control, view, target, target.adapter)
    return failed or verify(control, target, version, verification)


def verify(
    control: Control, target: Target, version: Inspected, verification: Verification
) -> Loaded | Failed | Refused:
    """Compares tensors and probe on an engine that says it has the target."""
    try:
        tensors = None if target.adapter else verification.inspector.agreement(control, version)
        # One at a time: users' tokens come between two of them, and would wait for all at once.
        measured = [control.score(prompt.ids, adapter=target.adapter) for prompt in version.prompts]
    except (ControlError, KeyError) as error:
        return Failed(f"the probe could not run: {error}", touched=True, blame=True)
    found = _found(target, version, tensors)
    if isinstance(tensors, Agreement) and tensors.other:
        reason = f"its tensor {tensors.first_other} is not on the engine as it was written"
        more = f" (and {tensors.other - 1} more)" if tensors.other > 1 else ""
        return Refused(reason + more, touched=True, probe=found)
    if not version.prompts:
        return Loaded(found)
    difference, tolerance = compare(version.prompts, measured), verification.tolerance
    found |= {"mean_abs_diff": _known(difference.mean), "max_abs_diff": _known(difference.max)}
    if difference.mean <= tolerance:
        return Loaded(found)
    if target.adapter is not None:
        _forget(control, target.adapter)
    reason = f"its probe differs by {difference.mean:.3f} nats on average, {tolerance:g} are allowed"
    return Refused(reason, touched=target.adapter is None, probe=found)


def _found(target: Target, version: Inspected, tensors: Agreement | str | None) -> dict[str, Any]:
    """The content of `publications.probe` before the log-probabilities are compared."""
    found: dict[str, Any] = {}
    if not version.prompts:
        found["missing"] = "the base model" if target.version == 0 else "its row has no probe"
    if isinstance(tensors, Agreement):
        found["tensors"] = {"same": tensors.same, "other": tensors.other}
    elif tensors is not None:
        found["tensors_missing"] = tensors
    return found


def _load_full(control: Control, target: Target) -> Failed | None:
    failed = _swap(control, target)
    try:
        control.continue_()  # also after a failure: users wait behind the pause
        return failed or _read_back(control, target)
    except ControlError as error:
        blame = failed is not None and failed.blame
        cause = "" if failed is None else f"{failed.error}; "
        return Failed(f"{cause}it may still be paused: {error}", touched=True, blame=blame)


def _swap(control: Control, target: Target) -> Failed | None:
    told = False
    try:
        control.pause("in_place")
        told = True
        control.update_weights_from_disk(target.path, str(target.version), flush_cache=False)
    except (HalfUpdatedError, EngineUnreachableError) as error:
        return Failed(str(error), touched=told, blame=told)
    except ControlError as error:
        return Failed(str(error), touched=False, blame=told)
    return None


def _read_back(control: Control, target: Target) -> Failed | None:
    info = control.model_info()
    reported = None if info is None else info.weight_version
    if reported == str(target.version):
        return None
    return Failed(f"it was told {target.version} and says {reported}", touched=True, blame=True)


def _load_adapter(control: Control, view: View, target: Target, name: str) -> Failed | None:
    if view.label not in ("0", "default"):
        error = f"it holds full weights {view.label}; an adapter needs the base model: restart the engine"
        return Failed(error, touched=False, blame=False)
    if name in view.adapters:  # loaded before a crash
        return None
    try:
        control.load_lora(name, target.path)
    except ControlError as error:
        return Failed(str(error), touched=False, blame=True)
    return None


def _forget(control: Control, adapter: str) -> None:
    try:
        control.unload_lora(adapter)
    except ControlError:
        return  # it stays loaded and unused; the next publish tries again


def _known(nats: float) -> float | None:
    """JSON has no infinity: a difference that is not a number is null."""
    return nats if math.isfinite(nats) else None
