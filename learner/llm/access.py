"""Where an outside model is and how it may be asked; and the sentences for what keeps it from being asked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import SecretStr

from dukou.settings import learning


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One model behind an OpenAI-compatible address; `section` is the table of config.toml it is from."""

    section: str  # judge | teacher: also the purpose of its calls
    model: str
    api_base: str
    api_key: SecretStr
    api_key_file: str = ""
    timeout: float
    concurrency: int
    temperature: float | None = None
    structured: Literal["auto", "always", "never"] = "auto"
    requests_per_minute: int = 0  # 0: no limit
    tokens_per_minute: int = 0
    usd_per_million: tuple[float, float] = (0.0, 0.0)  # prompt, output; both 0: as LiteLLM knows it

    def key(self) -> str:
        """The key; a file is read anew each time, so that it may rotate. Empty where there is none."""
        if not self.api_key_file:
            return self.api_key.get_secret_value()
        try:
            return Path(self.api_key_file).read_text(encoding="utf-8").strip()
        except OSError:
            return ""


def of_judge(settings: learning.JudgeSettings) -> Access:
    return Access(
        section="judge",
        model=settings.model,
        api_base=settings.api_base,
        api_key=settings.api_key,
        api_key_file=settings.api_key_file,
        timeout=settings.timeout_sec,
        concurrency=settings.concurrency,
        temperature=settings.temperature,
        structured=settings.structured,
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
        usd_per_million=(settings.usd_per_million_in, settings.usd_per_million_out),
    )


def of_teacher(settings: learning.TeacherSettings) -> Access:
    return Access(
        section="teacher",
        model=settings.model,
        api_base=settings.api_base,
        api_key=settings.api_key,
        timeout=settings.timeout_sec,
        concurrency=2,  # demonstrations are never urgent
    )


def misconfigured(access: Access) -> str | None:
    """The sentence that says which setting keeps the model from being asked at all; None where none does."""
    section, key = access.section, access.key()
    for name, value in (("api_base", access.api_base), ("api_key", key)):
        if "${" in value:
            return f"{section}.{name} still holds a literal ${{…}}: the variable it names was not expanded"
    if not key and access.api_key_file:
        return f"{section}.api_key_file {access.api_key_file} is empty or cannot be read"
    if not key:
        return (
            f"{section}.api_key is empty: set the variable it is read from (TAOTOKEN_API_KEY by default), "
            f"or any word where the server asks for no key, or {_otherwise(section)}"
        )
    if not access.api_base.startswith(("http://", "https://")):
        return f"{section}.api_base must begin with http:// or https://"
    return None


def refusal(access: Access, status: str) -> str:
    """What a permanent error means, and which setting to change."""
    section, model = access.section, access.model
    key = (
        f"{section}.api_key_file"
        if access.api_key_file
        else f"{section}.api_key (TAOTOKEN_API_KEY by default)"
    )
    meaning = {
        "http_401": f"the key was refused: {key} is wrong or expired",
        "http_402": f"the account has no money or budget left: {section}.api_key names the account",
        "http_403": f"the key may not use {section}.model {model}",
        "http_404": f"there is no {section}.model {model} at {section}.api_base {access.api_base} "
        "(which is used as it is)",
    }[status]
    return f"the {section} is paused (HTTP {status.removeprefix('http_')}): {meaning}"


def _otherwise(section: str) -> str:
    return "judge.kind = rules" if section == "judge" else "teacher.enable = false"
