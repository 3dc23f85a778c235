"""Settings of what learns: judge, teacher, batch, loss, trainer, publishing and its guards."""

import re
from typing import Annotated, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from dukou.settings.serving import Positive, Seconds, Section, Share


class JudgeSettings(Section):
    kind: Literal["auto", "llm", "rules"] = Field(
        "auto", description="auto: llm where there is a key, else rules"
    )
    api_base: str = Field("https://taotoken.net/api", description="OpenAI-compatible; no path is added")
    api_key: SecretStr = Field(SecretStr("${TAOTOKEN_API_KEY:-}"), description="keep it in the environment")
    api_key_file: str = Field(
        "", description="file with the key instead; read at every call, so it may rotate"
    )
    model: str = Field("openai/gpt-5-mini", min_length=1, description="LiteLLM model name")
    votes: Positive = Field(3, description="how often each turn is judged (m)")
    quorum: Positive = Field(2, description="votes that must come back; fewer: the score is NULL")
    temperature: float = Field(0.6, ge=0, le=2, description="sampling temperature of a vote")
    structured: Literal["auto", "always", "never"] = Field(
        "auto",
        description="ask for the verdict by JSON schema; auto: of models that LiteLLM knows to have it",
    )
    max_tokens: Positive = Field(1024, description="output tokens of one vote")
    timeout_sec: Seconds = Field(60, description="seconds for one call")
    concurrency: Positive = Field(8, description="calls in flight")
    requests_per_minute: int = Field(0, ge=0, description="calls in any minute, of one process; 0: no limit")
    tokens_per_minute: int = Field(0, ge=0, description="tokens in any minute, of one process; 0: no limit")
    usd_per_day: float = Field(0, ge=0, description="US dollars in a day of UTC, of all processes; 0: no cap")
    usd_total: float = Field(0, ge=0, description="US dollars ever; 0: no cap")
    tokens_per_day: int = Field(0, ge=0, description="tokens in a day of UTC, of all processes; 0: no cap")
    tokens_total: int = Field(0, ge=0, description="tokens ever; 0: no cap")
    usd_per_million_in: float = Field(0, ge=0, description="price of prompt tokens; 0: as LiteLLM knows it")
    usd_per_million_out: float = Field(0, ge=0, description="price of output tokens; 0: as LiteLLM knows it")
    case_characters: Annotated[int, Field(ge=2000)] = Field(
        28_000, description="of request, answer and next state that a judge sees; more is cut in the middle"
    )
    rubric: str = Field("default@2", min_length=1, description="a file in rubrics_dir or the built-in folder")
    rubrics_dir: str = Field("", description="folder of your own rubrics, <name>@<version>.md")
    rubric_for: list[str] = Field(
        default_factory=list,
        description='other rubrics for some turns, the first that fits: "tenant:acme=strict@1", '
        '"task:tools=tools@2", "tenant:acme,task:chat=…"',
    )

    @field_validator("rubric_for")
    @classmethod
    def _rubric_for_is_whole(cls, rules: list[str]) -> list[str]:
        condition = r"(tenant|task):[^,=]+"
        if not all(re.fullmatch(rf"{condition}(,{condition})*=[a-z0-9_-]+@[0-9]+", rule) for rule in rules):
            raise ValueError('must be rules like "tenant:acme=strict@1" or "task:tools=tools@2"')
        return rules

    @field_validator("quorum")
    @classmethod
    def _quorum_can_be_met(cls, quorum: int, info: ValidationInfo) -> int:
        votes = info.data.get("votes", quorum)
        if quorum > votes:
            raise ValueError(f"must be at most judge.votes, which is {votes}")
        return quorum


class TeacherSettings(Section):
    enable: bool = Field(
        False, description="ask this chat model for corrected answers: demonstrations for export and SFT"
    )
    api_base: str = Field("https://taotoken.net/api", description="OpenAI-compatible; no path is added")
    api_key: SecretStr = Field(SecretStr("${TAOTOKEN_API_KEY:-}"), description="keep it in the environment")
    model: str = Field("openai/gpt-5-mini", min_length=1, description="LiteLLM model name")
    timeout_sec: Seconds = Field(120, description="seconds for one call")
    max_tokens: Positive = Field(2048, description="output tokens of one corrected answer")
    engine_url: str = Field(
        "", description="an SGLang of its own that measures which hint says most; empty: the trainer does"
    )
    candidates: Positive = Field(3, description="hints of one turn that are measured")


class BatchSettings(Section):
    rollout_batch_size: Positive = Field(16, description="turns in a full batch")
    rollout_timeout_sec: Seconds = Field(
        1800, description="seconds from a batch's oldest sample until it closes partial"
    )
    min_size: Positive = Field(4, description="fewest turns in a partial batch")
    max_staleness: int = Field(
        4, ge=0, description="versions between sampling and training; more: stale. 0: the newest one only"
    )
    late_share: float = Field(
        0.125,
        ge=0,
        le=1,
        description="share of a batch that may be stale, so that slow tasks are trained too; more: dropped",
    )
    max_batch_tokens: int = Field(
        0, ge=0, description="tokens of prompts and answers after which a batch is full; 0: no such limit"
    )
    max_share_tenant: Share = Field(1, description="largest share of a full batch that is one tenant's")
    max_share_user: Share = Field(1, description="... one person's (the request's `user`, else the key's)")
    max_share_session: Share = Field(1, description="... one session's")
    max_share_task: Share = Field(1, description="... of one task class (chat, tools, tool_result)")
    zeros: Literal["train", "drop", "at_least_one"] = Field(
        "train",
        description="turns scored 0: samples like others, dropped, or dropped but for a session's first "
        "(OpenClaw-RL)",
    )
    cut_short: Literal["train", "drop"] = Field(
        "train", description="answers that ended at their token limit"
    )
    truncated: Literal["drop", "train"] = Field(
        "drop", description="answers sampled with top-p, top-k or min-p; dropped before a judge is asked"
    )
    stall_warn_interval: Seconds = Field(30, description="seconds without a new sample until the log says so")
    poll_interval: Seconds = Field(1.0, description="seconds between looks at the table")


class AdvantageSettings(Section):
    kind: Literal["running", "batch", "group", "group_mean", "leave_one_out", "raw"] = Field(
        "running",
        description="what a reward is centred over: earlier batches, its own batch, its siblings (with their "
        "deviation, without it, itself left out), or nothing",
    )
    half_life: float = Field(3, gt=0, description="batches until the running baseline has forgotten half")
    deviation_floor: float = Field(0.2, gt=0, description="the running deviation is never taken as smaller")


class LossSettings(Section):
    mode: Literal["rl", "opd", "combine"] = Field(
        "rl", description="rl: rewards; opd: distillation from hints; combine: both, weighed"
    )
    w_rl: float = Field(1.0, gt=0, description="combine: weight of the reward's advantage")
    w_opd: float = Field(1.0, gt=0, description="opd and combine: weight of the teacher's")
    teacher: Literal["base", "current"] = Field(
        "base",
        description="opd and combine: whose opinion under the hint teaches, the base model's or the present "
        "weights'; the latter moves away as it is followed",
    )
    opd_top_k: int = Field(
        0,
        ge=0,
        le=256,
        description="opd and combine: reverse KL over so many of the teacher's likeliest tokens at each "
        "position, the others as one; 0: the answer's own token alone",
    )
    clip_low: float = Field(0.2, gt=0, lt=1, description="the ratio new/old is clipped below 1 minus this")
    clip_high: float = Field(0.28, gt=0, description="the ratio new/old is clipped above 1 plus this")
    kl: float = Field(0.1, ge=0, description="weight of k3 to the base model; OpenClaw-RL: 0")
    tis_cap: float = Field(2.0, gt=0, description="upper bound of the importance weight old/rollout")
    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = Field(
        "token_mean",
        description="mean over all tokens, over the turns' means, or over turns of trainer.max_tokens each",
    )

    @property
    def taught_by_base(self) -> bool:
        """Whether the base model is needed as teacher."""
        return self.mode != "rl" and self.teacher == "base"


class GuardSettings(Section):
    max_kl: float = Field(
        2.0, ge=0, description="nats a token (k3 to the base model) above which learning freezes; 0: never"
    )
    min_entropy: float = Field(
        0.2, ge=0, lt=1, description="learning freezes below this share of the first steps' entropy; 0: never"
    )
    max_length: float = Field(
        4.0, ge=0, description="... when answers are this many times as long as in the first steps; 0: never"
    )
    min_distinct: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="... when answers repeat themselves: trigrams of tokens are distinct to "
        "less than this share of the first steps'; 0: never",
    )
    same_rewards: int = Field(
        5, ge=0, description="... after so many batches in a row whose rewards are all the same; 0: never"
    )
    max_spike: float = Field(
        20.0,
        ge=0,
        description="a batch is skipped whose gradient norm is this many times the recent median; 0: never",
    )


class TrainerSettings(Section):
    method: Literal["lora", "full"] = Field("lora", description="what is trained: an adapter or all weights")
    lora_rank: Positive = Field(16, description="rank of the adapter (r)")
    lora_alpha: Positive = Field(32, description="the adapter is scaled by alpha / rank")
    lora_targets: list[str] = Field(
        default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        min_length=1,
        description="names of the linear layers that get an adapter",
    )
    learning_rate: float = Field(1e-5, gt=0, description="step size of AdamW, constant after the warmup")
    warmup_steps: int = Field(
        0, ge=0, description="steps over which the learning rate rises in equal parts; 0: none"
    )
    betas: tuple[float, float] = Field((0.9, 0.98), description="AdamW's decay of its two moments")
    epsilon: float = Field(
        1e-8,
        gt=0,
        description="AdamW's ε; about as large as its gradients, steps follow their size, not the sign alone",
    )
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


class PublishSettings(Section):
    form: Literal["full", "adapter"] = Field("full", description="merged weights, or LoRA beside the base")
    automatic: bool = Field(True, description="move the live pointer after every step")
    probe_tolerance: float = Field(0.5, gt=0, description="nats by which a probe may differ (noise: 0.05)")
    max_kl: float = Field(
        0, ge=0, description="nats a token from the base model, above which a version is refused; 0: no limit"
    )
    held_out: int = Field(
        8,
        ge=0,
        description="newest scored turns that no step has trained, on which a new version is tried before it "
        "is live; 0: none",
    )
    max_kl_last: float = Field(
        1.0,
        ge=0,
        description="nats a token on those from the version before, above which it is refused; 0: no limit",
    )
    max_fall: float = Field(
        0.5,
        ge=0,
        description="nats a token by which good ones may become less likely, on average; 0: no limit",
    )
    max_cold_share: float = Field(
        0,
        ge=0,
        description="cached tokens that a publish makes cold, as a share of those computed until the next; "
        "more: it waits; 0: no limit",
    )
    trial_share: float = Field(
        0, ge=0, lt=1, description="share of the sessions that get a new adapter before all do; 0: no trial"
    )
    trial_seconds: Seconds = Field(
        3600, description="seconds after which a trial ends well for want of scores"
    )
    pin_sessions: float = Field(
        0,
        ge=0,
        description="seconds for which a session stays on the adapter it began with; 0: it moves at once",
    )
    checksums: bool = Field(
        True, description="compare an engine's tensors with the files after a load of full weights"
    )
    poll_interval: Seconds = Field(
        1.0,
        description="seconds between the reconciler's looks at engines; a pointer that moves is seen at once",
    )


class WatchSettings(Section):
    turns: int = Field(
        50, ge=0, description="scored turns of a version before it is compared with the one before; 0: never"
    )
    drop: float = Field(0.2, gt=0, description="fall of the mean score for which a version is rolled back …")
    length: float = Field(3.0, gt=1, description="… or by which factor answers are longer or shorter …")
    refusals: float = Field(
        0.15, gt=0, le=1, description="… or by how much the share of answers that refuse rose …"
    )
    tools: float = Field(0.15, gt=0, le=1, description="… or that of tool calls that cannot be read …")
    confidence: float = Field(0.99, gt=0.5, lt=1, description="… if it is sure to this degree")
