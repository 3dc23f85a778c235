"""The trainer's side of the tables: who trains, what a step reads, what makes it count."""

import uuid
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from dukou.errors import DukouError
from dukou.settings.model import Config
from dukou.store import batches, hints, policies, processes, publishing, versions, watch
from dukou.store.batches import BaselineState, Metrics, StepSettings, StoredBatch
from dukou.store.hints import AlternativeHint
from dukou.store.policies import Policy
from learner.train.files import StepRecord
from learner.train.guards import FIRST_STEPS
from learner.train.samples import Sample, from_turn

#: Seconds until a trainer with other checkpoints may take over from one that is gone.
LEASE_SECONDS = 3600.0


#: Earlier steps that a new one is held against.
RECENT_STEPS = 20


class TrainerBusyError(DukouError):
    """Another learner, with checkpoints of its own, trains this policy."""


@dataclass(frozen=True, slots=True)
class Work:
    """All that a step depends on, read in one transaction."""

    batch: StoredBatch
    settings: StepSettings
    baseline: BaselineState  # after the batch
    policy: Policy
    samples: list[Sample]
    alternatives: dict[uuid.UUID, list[AlternativeHint]]  # of turns with several hints, not compared yet
    held_out: list[Sample]  # scored turns that no step has trained, newest first
    head: int  # the version to go on from
    head_number: int | None  # the step that made it; None: the base model
    number: int  # of the step to come
    first: list[Metrics]  # the metrics of the policy's first steps, and of the newest, oldest first
    recent: list[Metrics]
    outdated: bool  # the batch was made for a version that `head` does not follow from: it was rolled back


def owner(checkpoints: Path) -> str:
    """Who trains is who has the checkpoints: a name kept beside them, the same after a restart."""
    path = checkpoints / "owner"
    if not path.exists():
        checkpoints.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".partial")
        beside.write_text(uuid.uuid4().hex)
        beside.replace(path)  # a name cut short by a crash would be a name as well
    return path.read_text()


class StepStore:
    """One policy's training in the database. `checkpoints`: the folder that names who trains."""

    def __init__(self, engine: Engine, policy: str, checkpoints: Path) -> None:
        self.engine, self.policy, self.checkpoints = engine, policy, checkpoints
        self.lease = f"trainer:{policy}"

    def acquire(self) -> int:
        """The token for one step, valid until anybody asks for the next. Raises TrainerBusyError."""
        with self.engine.begin() as connection:
            token = processes.acquire(connection, self.lease, owner(self.checkpoints), LEASE_SECONDS)
        if token is None:
            raise TrainerBusyError(f"another learner trains the policy {self.policy!r}")
        return token

    def read(self, batch_id: int, settings: Config) -> Work:
        """Raises ValueError where the batch is not closed, or is another policy's."""
        with self.engine.connect() as connection:
            batch = batches.get(connection, batch_id)
            policy = policies.get(connection, self.policy)
            if policy is None or policy.id != batch.policy_id or batch.status != "closed":
                raise ValueError(
                    f"batch {batch_id} is {batch.status}, or of another policy than {self.policy!r}"
                )
            used, baseline = batches.made_with(connection, batch_id)
            head = batches.head(connection, policy.id, policy.live_version)
            count, longest = settings.publish.held_out, settings.trainer.max_tokens
            held_out = watch.newest_held_out(connection, policy.id, count, longest)
            return Work(
                batch=batch,
                settings=used,
                baseline=baseline,
                policy=policy,
                samples=[from_turn(row) for row in batches.members(connection, batch_id)],
                alternatives=hints.alternatives(connection, batch_id, used.trainer.max_tokens),
                held_out=[from_turn(row) for row in held_out],
                head=head,
                head_number=batches.number_of(connection, policy.id, head),
                number=batches.next_number(connection, policy.id),
                first=batches.metrics(connection, policy.id, FIRST_STEPS, newest=False),
                recent=batches.metrics(connection, policy.id, RECENT_STEPS, newest=True),
                outdated=batch.live_version not in versions.ancestors(connection, policy.id, head),
            )

    def choose_hints(self, token: int, work: Work, chosen: dict[uuid.UUID, int]) -> None:
        """Writes which hint teaches each turn. Raises LeaseLostError for an old token."""
        with self.engine.begin() as connection:
            processes.check(connection, self.lease, token)
            hints.use(connection, work.batch.id, chosen)

    def next_version(self, policy_id: int) -> int:
        with self.engine.begin() as connection:
            return versions.next_version(connection, policy_id)

    def write(self, token: int, record: StepRecord) -> None:
        """Version, step, trained turns and trained batch, at once. Raises LeaseLostError for an old token."""
        with self.engine.begin() as connection:
            processes.check(connection, self.lease, token)
            policy_id = batches.get(connection, record.batch_id).policy_id
            versions.insert(
                connection,
                versions.NewVersion(
                    policy_id=policy_id,
                    version=record.version,
                    parent=record.parent,
                    batch_id=record.batch_id,
                    path=record.version_path,
                    form=record.form,
                    probe=record.probe,
                ),
            )
            batches.insert_step(
                connection,
                batches.NewStep(
                    batch_id=record.batch_id,
                    policy_id=policy_id,
                    number=record.number,
                    version=record.version,
                    checkpoint=str(self.checkpoints / str(record.number)),
                    metrics=record.metrics,
                    seconds=record.seconds,
                ),
            )
            batches.conclude(
                connection, record.batch_id, "trained", [uuid.UUID(turn) for turn in record.turns]
            )

    def skip(self, token: int, work: Work, reason: str, detail: str | None) -> None:
        """Ends a batch without a step; its turns are dropped with the reason."""
        with self.engine.begin() as connection:
            processes.check(connection, self.lease, token)
            turns = [sample.turn_id for sample in work.samples]
            batches.conclude(connection, work.batch.id, "skipped", turns, reason, detail)

    def awaits(self, record: StepRecord) -> bool:
        """Whether this checkpoint's batch is still closed, and is the very one that it was made of."""
        with self.engine.connect() as connection:
            batch = batches.find(connection, record.batch_id)
            if batch is None or batch.status != "closed":
                return False
            turns = [str(row.turn_id) for row in batches.members(connection, record.batch_id)]
        return turns == record.turns

    def kept(self, policy_id: int) -> list[tuple[int, int | None]]:
        """(version, step number) of what must stay on disk besides the newest."""
        with self.engine.connect() as connection:
            wanted = publishing.in_use(connection, policy_id)
            return [
                (version, batches.number_of(connection, policy_id, version)) for version in sorted(wanted)
            ]
