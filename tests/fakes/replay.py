"""What the tables alone say of a policy's weights: every step computed again, straight through."""

from pathlib import Path

import torch
from sqlalchemy import Engine
from torch.nn.utils import clip_grad_norm_

from dukou.settings.model import Config
from dukou.store import batches
from learner.train import gradient, model, weights
from learner.train.samples import from_turn
from tests.fakes.training import rows


def replayed(db: Engine, settings: Config) -> dict[str, torch.Tensor]:
    """The masters after all steps."""
    base = model.load(Path(settings.engine.model_path), torch.device("cpu"))
    trained = weights.of(base, settings.trainer, settings.loss)
    adamw = gradient.adamw(trained.masters.values())
    torch.set_num_threads(1)
    for (batch_id,) in rows(db, "select batch_id from steps order by number"):
        with db.connect() as connection:
            samples = [from_turn(row) for row in batches.members(connection, batch_id)]
            used, _ = batches.made_with(connection, batch_id)
        own = used.trainer
        gradient.accumulate(trained, samples, used.loss, own)
        clip_grad_norm_(trained.masters.values(), own.grad_clip)
        gradient.step(adamw, own)
        trained.spread()
        trained.clear()
    return dict(trained.masters)
