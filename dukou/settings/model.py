"""What config.toml may say: one class a section, one field a key, with default and unit.

The sections are in `serving.py` and `learning.py`. `docs.py` writes config.toml
and the table of docs/configuration.md from them; a test holds them together. A default may hold `${ENV:-…}`,
which `load.py` expands; so a program makes its Config with `load_config` or `from_mapping`, not from
the classes.
"""

from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from dukou.settings.learning import (
    AdvantageSettings,
    BatchSettings,
    GuardSettings,
    JudgeSettings,
    LossSettings,
    PublishSettings,
    TeacherSettings,
    TrainerSettings,
    WatchSettings,
)
from dukou.settings.serving import Database, Engine, Gateway, Policy, Privacy, Section, Session, Storage


class Config(Section):
    state_dir: Path = Field(
        Path(".dukou"),
        description="everything Dukou writes; relative to this file's folder",
    )
    database: Database = Database()
    gateway: Gateway = Gateway()
    engine: Engine = Engine()
    policy: Policy = Policy()
    session: Session = Session()
    storage: Storage = Storage()
    privacy: Privacy = Privacy()
    judge: JudgeSettings = JudgeSettings()
    teacher: TeacherSettings = TeacherSettings()
    batch: BatchSettings = BatchSettings()
    advantage: AdvantageSettings = AdvantageSettings()
    loss: LossSettings = LossSettings()
    guard: GuardSettings = GuardSettings()
    trainer: TrainerSettings = TrainerSettings()
    publish: PublishSettings = PublishSettings()
    watch: WatchSettings = WatchSettings()

    @field_validator("publish")
    @classmethod
    def _an_adapter_is_trained(cls, publish: PublishSettings, info: ValidationInfo) -> PublishSettings:
        trainer = info.data.get("trainer")
        if publish.form == "adapter" and trainer is not None and trainer.method != "lora":
            raise ValueError('form = "adapter" needs trainer.method = "lora"')
        targets = trainer.lora_targets if publish.form == "adapter" and trainer is not None else []
        for one, other in (("q_proj", "v_proj"), ("v_proj", "q_proj"), ("up_proj", "gate_proj")):
            if one in targets and other not in targets:
                raise ValueError(f"engines fuse {one} with {other}: name both in trainer.lora_targets")
        if publish.form == "full" and publish.trial_share > 0:
            raise ValueError('trial_share needs form = "adapter": full weights are not served side by side')
        return publish
