"""What crosses processes as JSON: its keys stay, and other releases' fields do no harm."""

import pytest
from pydantic import ValidationError

from dukou.settings.learning import GuardSettings, TrainerSettings
from dukou.settings.model import Config
from dukou.store.batches import BaselineState, SessionSum, StepSettings
from dukou.store.versions import BadProbeError, Probe, ProbePrompt
from learner.train.files import StepRecord

SECTIONS = ("batch", "advantage", "loss", "guard", "trainer")
PROBE = Probe((ProbePrompt((1, 2), (-0.5,)),))
RECORD = StepRecord(3, 4, ["a", "b"], 5, 2, "/versions/5", "full", PROBE, {"loss": 0.5, "kl/mean": None}, 1.5)


def used(config: Config) -> StepSettings:
    return StepSettings(**{name: getattr(config, name) for name in SECTIONS})


def test_a_batch_keeps_the_sections_of_the_settings_as_config_toml_has_them():
    config = Config(trainer={"lora_rank": 4, "betas": (0.8, 0.9)}, guard={"max_kl": 3})
    stored = used(config).encode()
    assert stored == config.model_dump(mode="json", include=set(SECTIONS))
    assert list(stored) == list(SECTIONS)
    assert StepSettings.decode(stored) == used(config)


def test_settings_that_a_release_does_not_know_are_ignored_and_missing_ones_are_defaults():
    stored = used(Config()).encode()
    stored["trainer"] |= {"of_a_later_release": 1, "lora_rank": 4}
    del stored["guard"], stored["trainer"]["seed"]
    assert StepSettings.decode(stored | {"later": {}}).trainer == TrainerSettings(lora_rank=4)
    assert StepSettings.decode(stored).guard == GuardSettings()


def test_settings_that_a_release_refuses_are_not_made_up():
    stored = used(Config()).encode() | {"trainer": {"lora_rank": -1}}
    with pytest.raises(ValidationError):
        StepSettings.decode(stored)


def test_the_baseline_keeps_its_rows_and_begins_empty():
    state = BaselineState((SessionSum("s", "chat", 1.5, 0.5), SessionSum("", "chat", 0.5, 0.25)), (2.0, 0.5))
    stored = {"sessions": [["s", "chat", 1.5, 0.5], ["", "chat", 0.5, 0.25]], "residuals": [2.0, 0.5]}
    assert state.encode() == stored
    assert BaselineState.decode(stored | {"later": 1}) == state
    assert BaselineState.decode({}) == BaselineState()


def test_a_probe_keeps_its_prompts_and_a_malformed_one_is_refused():
    stored = {"prompts": [{"ids": [1, 2], "logprobs": [-0.5]}]}
    assert PROBE.encode() == stored
    assert Probe.decode(stored | {"later": 1}) == PROBE
    for malformed in ({}, {"prompts": [{"ids": [1]}]}, {"prompts": 7}):
        with pytest.raises(BadProbeError, match="malformed"):
            Probe.decode(malformed)


def test_a_checkpoints_record_is_read_as_it_was_written():
    stored = RECORD.encode()
    assert (stored["probe"], stored["metrics"]) == (PROBE.encode(), {"loss": 0.5, "kl/mean": None})
    assert StepRecord.decode(stored | {"later": 1}) == RECORD
