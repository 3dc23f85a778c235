"""What differs between the arms: a setting, how the users react, whether hints are written. Pure."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from dukou.local.demo import wish
from dukou.local.demo.users import React

#: What hints say, where no LLM judge is there to write them. Several, as a judge has: from a single one a
#: model learns its opening words. SmolLM2-135M follows examples better than instructions.
HINTS = (
    "{topic} can make your day better, and you will find them everywhere.",
    "When you look at {topic}, you see more than you expect.",
    "Many people like {topic}, and so can you.",
    "If {topic} are new to you, here is how they help you.",
)


def flipped(reply: str, topic: str, pick: int) -> str:
    """Praise where the wish was not met, complaint where it was."""
    wordings = wish.COMPLAINT if wish.is_met(reply, topic) else wish.PRAISE
    return wordings[pick % len(wordings)].format(topic=topic)


def shuffled(reply: str, topic: str, pick: int) -> str:
    """Praise or complaint by a coin that has not seen the reply: praise for a quarter, as at the start."""
    wordings = wish.PRAISE if random.Random(pick).random() < 0.25 else wish.COMPLAINT
    return wordings[pick % len(wordings)].format(topic=topic)


@dataclass(frozen=True, slots=True)
class Mode:
    environ: Mapping[str, str] = field(default_factory=dict)
    react: React = wish.reaction
    hints: bool = False


MODES: dict[str, Mode] = {
    "rl": Mode(),
    "opd": Mode({"DUKOU_LOSS_MODE": "opd"}, hints=True),
    # The teacher counts less than the reward: it knows no more of the wish than its hints say.
    "combine": Mode({"DUKOU_LOSS_MODE": "combine", "DUKOU_LOSS_W_OPD": "0.2"}, hints=True),
    "shuffled": Mode(react=shuffled),
    "flipped": Mode(react=flipped),
    # Trained as rl is, while the engine goes on answering with version 0.
    "pinned": Mode({"DUKOU_PUBLISH_AUTOMATIC": "false"}),
}
