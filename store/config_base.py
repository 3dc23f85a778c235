"""What every section of the settings shares."""

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

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
