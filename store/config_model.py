"""What config.toml may say: one class a section, one field a key, with default and unit.

`store/config_docs.py` writes config.toml and the table of docs/configuration.md from this file, and a test
holds them together. A default may hold `${ENV:-…}`, which `store/config.py` expands; so a program makes its
Config with `load_config` or `from_mapping`, not from the classes.
"""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]

_URL = re.compile(r"https?://(\S+@)?(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d{1,5})?(/|/[^/\s]\S*)?", re.ASCII)


class Section(BaseModel):
    """A table of config.toml. No message and no repr shows a secret or a refused input."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_as_number(cls, value: object, info: ValidationInfo) -> object:
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and kind in (int, float):
            raise ValueError("must be a number")
        return value


class Database(Section):
    url: SecretStr = Field(SecretStr("${DATABASE_URL:-}"), description="empty: the embedded Postgres")
    pool_size: Positive = Field(5, description="connections a process keeps")

    @field_validator("url")
    @classmethod
    def _is_postgres(cls, url: SecretStr) -> SecretStr:
        if not re.match(r"$|\$\{|postgres(ql)?(\+psycopg)?://", url.get_secret_value()):
            raise ValueError("must be empty or begin with postgresql://")
        return url


class Spool(Section):
    fsync: Literal["none", "interval", "always"] = Field(
        "interval",
        description="none and interval survive the death of any process; interval loses at most a second "
        "to a power cut, always nothing",
    )
    segment_bytes: Positive = Field(64 * 2**20, description="bytes after which a new segment file begins")
    max_bytes: Positive = Field(8 * 2**30, description="bytes the spool may take; a warning comes at 70%")


class Gateway(Section):
    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="address to listen on; where others can reach it, set keys",
    )
    port: int = Field(8080, ge=0, le=65535, description="TCP port to listen on; 0: any free one")
    workers: Positive = Field(1, description="uvicorn processes")
    keys: list[SecretStr] = Field(
        default_factory=lambda: [SecretStr("${DUKOU_KEYS:-}")],
        description="clients' keys, plain or sha256:<64 hex digits>; DUKOU_KEYS holds them comma-separated; "
        "none: no check",
    )
    max_body_bytes: Positive = Field(32 * 2**20, description="bytes of a request; larger: 413")
    connect_timeout: Seconds = Field(5, description="seconds to reach the engine")
    idle_timeout: Seconds = Field(600, description="seconds of silence from the engine before 504")
    write_timeout: Seconds = Field(60, description="seconds a client may read nothing until it is cut off")
    spool: Spool = Spool()

    @field_validator("keys")
    @classmethod
    def _digests_are_whole(cls, keys: list[SecretStr]) -> list[SecretStr]:
        for key in keys:
            text = key.get_secret_value()
            if text.startswith("sha256:") and not re.fullmatch(r"sha256:[0-9a-fA-F]{64}", text):
                raise ValueError("a sha256: key must have 64 hex digits")
        return keys

    @property
    def open_to_everybody(self) -> bool:
        """Whether machines other than this one can reach the gateway without a key."""
        if self.keys or self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return True


class Engine(Section):
    urls: list[str] = Field(
        default_factory=lambda: ["http://127.0.0.1:30000"],
        description="SGLang servers",
    )
    model_path: str = Field("", description="HF model folder; empty: SmolLM2-135M-Instruct from a wheel")
    served_name: str = Field("policy", min_length=1, description="the model name that clients see")
    api_key: SecretStr = Field(SecretStr(""), description="sent to the engine, where it asks for one")
    tool_call_parser: str = Field("qwen25", description="never none: SGLang then drops log-probabilities")
    extra_args: list[str] = Field(
        default_factory=list, description="more arguments of `sglang.launch_server`"
    )

    @field_validator("urls")
    @classmethod
    def _are_urls(cls, urls: list[str]) -> list[str]:
        if not urls or not all(_URL.fullmatch(url) for url in urls):
            raise ValueError("must be one or more addresses like http://127.0.0.1:30000")
        return [url.rstrip("/") for url in urls]


class Policy(Section):
    name: str = Field(
        "default",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="what learns; its versions, batches, baseline and folders carry this name",
    )
    scope: Literal["global"] = Field("global", description="who shares the policy")


class Session(Section):
    max_turns: Positive = Field(32, description="main turns after which a session is closed for scoring")
    idle_seconds: Seconds = Field(1800, description="seconds without a request until a session is closed")


class Judge(Section):
    kind: Literal["auto", "llm", "rules"] = Field(
        "auto", description="auto: llm where there is a key, else rules"
    )
    api_base: str = Field("https://taotoken.net/api", description="OpenAI-compatible; no path is added")
    api_key: SecretStr = Field(SecretStr("${TAOTOKEN_API_KEY:-}"), description="keep it in the environment")
    model: str = Field("openai/gpt-5-mini", min_length=1, description="LiteLLM model name")
    votes: Positive = Field(3, description="how often each turn is judged (m)")
    quorum: Positive = Field(2, description="votes that must come back; fewer: the score is NULL")
    temperature: float = Field(0.6, ge=0, le=2, description="sampling temperature of a vote")
    max_tokens: Positive = Field(1024, description="output tokens of one vote")
    timeout_sec: Seconds = Field(60, description="seconds for one call")
    concurrency: Positive = Field(8, description="calls in flight")
    rubric: str = Field("default@1", min_length=1, description="file under learner/score/rubrics")

    @field_validator("quorum")
    @classmethod
    def _quorum_can_be_met(cls, quorum: int, info: ValidationInfo) -> int:
        votes = info.data.get("votes", quorum)
        if quorum > votes:
            raise ValueError(f"must be at most judge.votes, which is {votes}")
        return quorum


class Batch(Section):
    rollout_batch_size: Positive = Field(16, description="turns in a full batch")
    rollout_timeout_sec: Seconds = Field(
        1800, description="seconds from a batch's oldest sample until it closes partial"
    )
    min_size: Positive = Field(4, description="fewest turns in a partial batch")
    max_staleness: Positive = Field(4, description="versions between sampling and training; more: dropped")
    stall_warn_interval: Seconds = Field(30, description="seconds without a new sample until the log says so")
    poll_interval: Seconds = Field(1.0, description="seconds between looks at the table")


class Advantage(Section):
    kind: Literal["running", "batch", "group", "group_mean", "leave_one_out", "raw"] = Field(
        "running",
        description="what a reward is centred over: earlier batches, its own batch, its siblings (with their "
        "deviation, without it, itself left out), or nothing",
    )
    half_life: float = Field(3, gt=0, description="batches until the running baseline has forgotten half")
    deviation_floor: float = Field(0.2, gt=0, description="the running deviation is never taken as smaller")


class Loss(Section):
    clip_low: float = Field(0.2, gt=0, lt=1, description="the ratio new/old is clipped below 1 minus this")
    clip_high: float = Field(0.28, gt=0, description="the ratio new/old is clipped above 1 plus this")
    kl: float = Field(0.1, ge=0, description="weight of k3 to the base model; OpenClaw-RL: 0")
    tis_cap: float = Field(2.0, gt=0, description="upper bound of the importance weight old/rollout")
    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = Field(
        "token_mean",
        description="mean over all tokens, over the turns' means, or over turns of trainer.max_tokens each",
    )


class Trainer(Section):
    method: Literal["lora", "full"] = Field("lora", description="what is trained: an adapter or all weights")
    lora_rank: Positive = Field(16, description="rank of the adapter (r)")
    lora_alpha: Positive = Field(32, description="the adapter is scaled by alpha / rank")
    lora_targets: list[str] = Field(
        default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        min_length=1,
        description="names of the linear layers that get an adapter",
    )
    learning_rate: float = Field(1e-5, gt=0, description="step size of AdamW, constant")
    betas: tuple[float, float] = Field((0.9, 0.98), description="AdamW's decay of its two moments")
    weight_decay: float = Field(0.1, ge=0, description="AdamW's decoupled weight decay")
    grad_clip: float = Field(1.0, gt=0, description="largest norm of the whole gradient")
    max_tokens: Positive = Field(8192, description="tokens of prompt plus answer; longer turns are dropped")
    micro_batch_tokens: Positive = Field(4096, description="tokens in one forward pass")
    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:<index>"
    )
    threads: int = Field(1, ge=0, description="CPU threads of torch; 0: torch decides")
    seed: int = Field(0, description="fixes initialisation and data order")
    keep_checkpoints: Positive = Field(3, description="newest checkpoints kept besides the live one")
    dry_run: bool = Field(False, description="record, score and batch, but train nothing")

    @field_validator("betas")
    @classmethod
    def _betas_decay(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError("must be two numbers of at least 0 and less than 1")
        return betas


class Publish(Section):
    form: Literal["full", "adapter"] = Field("full", description="merged weights, or LoRA beside the base")
    automatic: bool = Field(True, description="move the live pointer after every step")
    probe_tolerance: float = Field(0.5, gt=0, description="nats by which a probe may differ (noise: 0.05)")
    poll_interval: Seconds = Field(1.0, description="seconds between the reconciler's looks")


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
    judge: Judge = Judge()
    batch: Batch = Batch()
    advantage: Advantage = Advantage()
    loss: Loss = Loss()
    trainer: Trainer = Trainer()
    publish: Publish = Publish()

    @field_validator("publish")
    @classmethod
    def _an_adapter_is_trained(cls, publish: Publish, info: ValidationInfo) -> Publish:
        trainer = info.data.get("trainer")
        if publish.form == "adapter" and trainer is not None and trainer.method != "lora":
            raise ValueError('form = "adapter" needs trainer.method = "lora"')
        return publish
