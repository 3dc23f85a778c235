"""What every section of the settings shares.

Settings of what serves and records: database, gateway, engine, sessions, storage.
"""

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]

URL = re.compile(r"https?://(\S+@)?(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d{1,5})?(/|/[^/\s]\S*)?", re.ASCII)


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
        description="all survive the death of any process; a power cut costs none up to half a minute, "
        "interval about a second, always nothing",
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
    admin_keys: list[SecretStr] = Field(
        default_factory=lambda: [SecretStr("${DUKOU_ADMIN_KEYS:-}")],
        description="keys of /admin (publish, rollback, pin), written as in keys; none: /admin is closed",
    )
    max_body_bytes: Positive = Field(32 * 2**20, description="bytes of a request; larger: 413")
    connect_timeout: Seconds = Field(5, description="seconds to reach the engine")
    idle_timeout: Seconds = Field(600, description="seconds of silence from the engine before 504")
    max_held: Positive = Field(
        256,
        description="requests a worker holds while no engine is ready, for at most a minute; one more: 429",
    )
    write_timeout: Seconds = Field(60, description="seconds a client may read nothing until it is cut off")
    spool: Spool = Spool()

    @field_validator("keys", "admin_keys")
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
        return not self.keys and not self.on_loopback

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the gateway."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False


class Engine(Section):
    urls: list[str] = Field(
        default_factory=lambda: ["http://127.0.0.1:30000"],
        description="SGLang servers",
    )
    model_path: str = Field("", description="HF model folder; empty: SmolLM2-135M-Instruct from a wheel")
    served_name: str = Field("policy", min_length=1, description="the model name that clients see")
    api_key: SecretStr = Field(SecretStr(""), description="sent to the engine, where it asks for one")
    tool_call_parser: str = Field("qwen25", description="never none: SGLang then drops log-probabilities")
    sampling_defaults: Literal["model", "openai"] = Field(
        "model",
        description="what a chat request gets that leaves out how to sample: what the model recommends, or "
        "temperature 1; for the engine that Dukou starts",
    )
    extra_args: list[str] = Field(
        default_factory=list, description="more arguments of `sglang.launch_server`"
    )
    private_fields: Literal["refuse", "pass"] = Field(
        "refuse",
        description="fields of a request that are between an engine and its own parts (input_ids, "
        "bootstrap_*, custom_logit_processor, …): refuse them with 400 where there are keys or others can "
        "reach the gateway, or pass them",
    )

    @field_validator("urls")
    @classmethod
    def _are_urls(cls, urls: list[str]) -> list[str]:
        if not urls or not all(URL.fullmatch(url) for url in urls):
            raise ValueError("must be one or more addresses like http://127.0.0.1:30000")
        return [url.rstrip("/") for url in urls]


class Policy(Section):
    name: str = Field(
        "default",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="what learns; its versions, batches, baseline and folders carry this name",
    )
    scope: Literal["global"] = Field("global", description="who shares the policy")


class Storage(Section):
    partition: Literal["day", "month"] = Field(
        "month", description="the span of turns that one partition holds, and that is deleted at once"
    )
    keep_days: int = Field(
        0, ge=0, description="days that turns are kept, rounded up to whole partitions; 0: for ever"
    )


StoreFalse = Literal["ignore", "no_train", "no_record"]


class Privacy(Section):
    store_false: StoreFalse = Field(
        "no_train",
        description="what store: false in a request does. ignore: nothing; no_train: its chat turn is not "
        "trained; no_record: nothing of the exchange is kept, whatever the endpoint, it is only counted",
    )


class Session(Section):
    max_turns: Positive = Field(32, description="main turns after which a session goes on in a new segment")
    idle_seconds: Seconds = Field(1800, description="seconds without a request until a session is closed")
