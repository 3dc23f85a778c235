"""The trainer: one closed batch, one optimizer step, one checkpoint, one version. Exactly once.

    forward and backward ─► optimizer ─► version folder ─► checkpoint folder ─► one transaction
                                               (a)                (b)                 (c)

Killed before (b), nothing counts: the batch is trained again from the same rows to the same weights. Killed
between (b) and (c), `recover` writes the rows from the checkpoint's record. After (c) it is done.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from sqlalchemy import Engine
from torch.nn.utils import clip_grad_norm_

from dukou.settings.learning import LossSettings
from dukou.settings.model import Config
from dukou.settings.paths import StatePaths
from dukou.store.batches import Metrics
from dukou.store.versions import Probe
from learner.train import export, files, gradient, heldout, hints, metrics, model, probe, weights
from learner.train.files import StepRecord
from learner.train.gradient import Totals
from learner.train.guards import Refusal, refuse
from learner.train.ledger import StepStore, Work
from learner.train.weights import LoraWeights, Weights

log = logging.getLogger("dukou.learner")


@dataclass(frozen=True, slots=True)
class StepReport:
    """What became of a batch. Number, version and metrics are None where it was skipped, with the reason."""

    batch_id: int
    status: Literal["trained", "skipped"]
    reason: str | None
    number: int | None
    version: int | None
    metrics: Metrics | None
    seconds: float


@dataclass(frozen=True, slots=True)
class _Update:
    """An optimizer step in memory, and what was measured on its way."""

    metrics: Metrics


@dataclass(slots=True)
class _LoadedModel:
    """What is in memory. `version` is None while it is ahead of what is durable."""

    base: Path
    weights: Weights
    optimizer: torch.optim.Optimizer
    version: int | None


class Trainer:
    """Trains one policy; holds the model from the first step on."""

    def __init__(self, engine: Engine, config: Config) -> None:
        """Raises ValueError for settings that do not go together."""
        if config.publish.form == "adapter" and config.trainer.method != "lora":
            raise ValueError('publish.form = "adapter" needs trainer.method = "lora"')
        paths = StatePaths.for_config(config)
        self.config = config
        self.checkpoints = paths.checkpoints(config.policy.name).resolve()
        self.versions = paths.versions(config.policy.name).resolve()
        self.step_store = StepStore(engine, config.policy.name, self.checkpoints)
        self._loaded: _LoadedModel | None = None

    def recover(self) -> list[int]:
        """Adopts durable checkpoints whose rows were lost in a crash; returns their batches' ids."""
        adopted: list[int] = []
        for path in files.numbered(self.checkpoints).values():
            record = files.read_record(path)
            if self.step_store.awaits(record):
                self.step_store.write(self.step_store.acquire(), record)
                log.info("adopted step %d of batch %d from its checkpoint", record.number, record.batch_id)
                adopted.append(record.batch_id)
        return adopted

    def step(self, batch_id: int) -> StepReport:
        """Trains a closed batch. On return it is durable and in the tables.

        Raises TrainerBusyError, LeaseLostError, ExportError; FileNotFoundError where the checkpoint to go on
        from is gone; ValueError where the batch is not closed. The batch can then be trained again.
        """
        began = time.monotonic()
        token = self.step_store.acquire()
        work = self.step_store.read(batch_id, self.config)
        if work.outdated:
            return self._skip(token, work, "not_an_ancestor", began)
        loaded = self._at(work)
        work = hints.choose_hints(self.step_store, token, loaded.weights, work)
        update = self._update(loaded, work)
        if isinstance(update, Refusal):
            return self._skip(token, work, update.reason, began, update.detail)
        record = self._make_durable(loaded, work, update, began)
        self.step_store.write(token, record)
        loaded.version = record.version
        self._prune(work.policy.id)
        return StepReport(
            batch_id, "trained", None, record.number, record.version, record.metrics, record.seconds
        )

    def _skip(
        self, token: int, work: Work, reason: str, began: float, detail: str | None = None
    ) -> StepReport:
        self.step_store.skip(token, work, reason, detail)
        return StepReport(work.batch.id, "skipped", reason, None, None, None, time.monotonic() - began)

    def _at(self, work: Work) -> _LoadedModel:
        """Weights and optimizer of the version to go on from."""
        if self._loaded is not None and self._loaded.version == work.head:
            return self._loaded
        if self._loaded is None or work.head_number is None:
            self._loaded = self._load(Path(work.policy.base_model))
        if work.head_number is not None:
            path = self.checkpoints / str(work.head_number)
            files.restore(path, self._loaded.weights, self._loaded.optimizer)
        self._loaded.version = work.head
        return self._loaded

    def _load(self, base: Path) -> _LoadedModel:
        settings = self.config.trainer
        if settings.threads:
            torch.set_num_threads(settings.threads)
        export.check_tied(base)
        loaded = model.load(base, model.pick_device(settings.device))
        trained = weights.of(loaded, settings, self.config.loss)
        count = sum(master.numel() for master in trained.masters.values())
        log.info("training %d tensors, %d numbers, of %s", len(trained.masters), count, base.name)
        return _LoadedModel(base, trained, gradient.adamw(trained.masters.values()), None)

    def _update(self, loaded: _LoadedModel, work: Work) -> _Update | Refusal:
        """One optimizer step in memory. Refused, nothing was applied."""
        settings = work.settings.trainer
        loss = work.settings.loss
        compared = self._try_on_held_out(loaded, work, loss)
        began = time.monotonic()
        totals = gradient.accumulate(loaded.weights, work.samples, loss, settings)
        norm = float(clip_grad_norm_(loaded.weights.masters.values(), settings.grad_clip))
        refusal, measured = _examine(work, totals, norm, kl=loss.kl > 0)
        if refusal is not None:
            loaded.weights.clear()
            return refusal
        loaded.version = None
        measured["optim/learning_rate"] = gradient.step(loaded.optimizer, settings)
        loaded.weights.spread()
        loaded.weights.clear()
        tokens = measured["tokens"] or 0.0
        seconds = time.monotonic() - began
        return _Update({**measured, **compared(), "perf/tokens_per_second": tokens / seconds})

    def _try_on_held_out(self, loaded: _LoadedModel, work: Work, loss: LossSettings) -> Callable[[], Metrics]:
        """Begins to compare the weights before the step with those after it, which the result measures."""
        has_base = loss.kl > 0 or isinstance(loaded.weights, LoraWeights)
        base = has_base and self.config.publish.max_kl > 0
        budget = gradient.token_budget(loaded.weights, self.config.trainer)
        return heldout.begin(loaded.weights, work.held_out, budget, base=base)

    def _make_durable(self, loaded: _LoadedModel, work: Work, update: _Update, began: float) -> StepRecord:
        """Writes the version, then the checkpoint; with the latter the step counts."""
        version = self.step_store.next_version(work.policy.id)
        path = self.versions / str(version)
        self._export(loaded, path)
        seconds = time.monotonic() - began
        record = StepRecord(
            number=work.number,
            batch_id=work.batch.id,
            turns=[str(sample.turn_id) for sample in work.samples],
            version=version,
            parent=work.head,
            version_path=str(path),
            form=self.config.publish.form,
            probe=self._probe(loaded),
            metrics=update.metrics,
            seconds=seconds,
        )
        final = self.checkpoints / str(work.number)
        files.write(final, loaded.weights, loaded.optimizer, record, work.baseline)
        return record

    def _export(self, loaded: _LoadedModel, path: Path) -> None:
        if self.config.publish.form == "full":
            export.write_merged(path, loaded.base, loaded.weights)
        elif isinstance(loaded.weights, LoraWeights):
            export.write_adapter(path, loaded.base, loaded.weights.adapters, self.config.trainer)

    def _probe(self, loaded: _LoadedModel) -> Probe:
        ids = probe.prompts(loaded.base, model.vocabulary(loaded.weights.model))
        if self.config.publish.form == "adapter":
            return probe.measure(loaded.weights.model, ids)
        with loaded.weights.as_merged() as merged:
            return probe.measure(merged, ids)

    def _prune(self, policy_id: int) -> None:
        newest = self.config.trainer.keep_checkpoints
        kept = self.step_store.kept(policy_id)
        files.prune(self.checkpoints, newest, [number for _, number in kept if number is not None])
        files.prune(self.versions, newest, [version for version, _ in kept])


def _examine(work: Work, totals: Totals, norm: float, *, kl: bool) -> tuple[Refusal | None, Metrics]:
    """The step's metrics, and why it must not be applied. The batch's own settings count, as in a replay."""
    if not (totals.finite and math.isfinite(norm)):
        return Refusal("not_finite", f"loss {totals.loss}, gradient norm {norm}"), {}
    if work.head != work.batch.live_version:
        totals.differences.clear()  # steps since: what answered are not the weights that train on
    measured = metrics.of_step(work.samples, totals, kl=kl, grad_norm=norm)
    warning = metrics.unusual_ratio(measured)
    if warning:
        log.warning(warning)
    return refuse(measured, work.first, work.recent, work.settings.guard), measured
