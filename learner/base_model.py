"""The base model's folder, as far as it can be read without torch."""

import json
from pathlib import Path


def vocabulary(base: Path) -> int:
    """The number of token ids that the model knows.

    Raises FileNotFoundError, KeyError where config.json does not say.
    """
    config = json.loads((base / "config.json").read_text())
    holder = config if "vocab_size" in config else config["text_config"]
    return int(holder["vocab_size"])
