"""What differs between the arms: a setting, how the users react, whether hints are written. Pure."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from local.demo import wish
from local.demo.users import React

#: What a hint says to every answer: a template, where no LLM judge is there to write one.
HINT = (
    "Speak to the reader as you, name {topic} in the answer, and do not repeat yourself. "
    "For example, begin: You can see {topic}"
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
    "combine": Mode({"DUKOU_LOSS_MODE": "combine"}, hints=True),
    "shuffled": Mode(react=shuffled),
    "flipped": Mode(react=flipped),
    # Trained as rl is, while the engine goes on answering with version 0.
    "pinned": Mode({"DUKOU_PUBLISH_AUTOMATIC": "false"}),
}
