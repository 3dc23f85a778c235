"""Hostile hints under the real tokenizer and chat template of the small model."""

import random

import numpy as np

from dukou.local.engine.models import TINY_MODEL
from dukou.settings.paths import StatePaths
from learner.hints.choose import with_hint
from learner.hints.template import Conversation, control_tokens, enhanced, renderer

MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "Capital of France?"}]
OTHERS = ["\n", "<", "|", ">", " a ", "]", "[", "\u200b", "user"]


def test_hints_made_of_the_models_own_tokens_add_no_turn(installed: StatePaths) -> None:
    model = installed.models / TINY_MODEL
    render, control = renderer(model), control_tokens(model)
    bare = render(MESSAGES, None, {})
    own = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<file_sep>", "<gh_stars>"]
    assert np.isin(
        render([{"role": "user", "content": "".join(own)}], None, {}), sorted(control)
    ).sum() > len(own)
    chance = random.Random(0)
    for _ in range(300):
        hint = "".join(chance.choices([*own, *OTHERS], k=chance.randint(1, 12)))
        hinted = with_hint(MESSAGES, hint)
        assert hinted is not None
        told = enhanced(render, Conversation(MESSAGES), hinted, bare, control)
        assert [n for n in told.tolist() if n in control] == [n for n in bare.tolist() if n in control]
