"""What `store: false` in a request does, by `privacy.store_false`. Pure; worker and drainer both ask here.

Only JSON's `false` asks for anything: null, 0 and "false" do not. A body that is no object says nothing.
"""

from collections.abc import Mapping
from typing import Any

from dukou.settings.serving import StoreFalse


def forbids_recording(body: Mapping[str, Any], setting: StoreFalse) -> bool:
    """Whether nothing of the exchange may be kept, whatever its endpoint."""
    return setting == "no_record" and body.get("store") is False


def forbids_training(body: Mapping[str, Any], setting: StoreFalse) -> bool:
    """Whether a chat turn may not be trained on; turns of other endpoints never are."""
    return setting != "ignore" and body.get("store") is False
