"""Whether a version may become live by itself, from what its step measured. Pure.

What is unknown (NULL) refuses nothing: `publish.held_out` turns may not be there yet.
"""

from collections.abc import Mapping

from dukou.settings.learning import PublishSettings


def refusal(measured: Mapping[str, float | None], limits: PublishSettings) -> str | None:
    """Why a version must not become live, with the numbers; None where it may. A limit of 0 is none."""
    turns = f"on {measured.get('held/turns') or 0:.0f} held-out turns"
    for name, limit, setting, words in (
        ("kl/mean", limits.max_kl, "max_kl", "its KL to the base model is {:.3g} nats a token"),
        (
            "held/kl_base",
            limits.max_kl,
            "max_kl",
            f"its KL to the base model is {{:.3g}} nats a token {turns}",
        ),
        (
            "held/kl_last",
            limits.max_kl_last,
            "max_kl_last",
            f"its KL to the version before is {{:.3g}} nats a token {turns}",
        ),
    ):
        value = measured.get(name)
        if limit and value is not None and value > limit:
            return f"{words.format(value)}, publish.{setting} allows {limit:g}"
    good, bad = measured.get("held/good"), measured.get("held/bad")
    if not limits.max_fall or good is None or good >= -limits.max_fall:
        return None
    others = "" if bad is None else f", bad ones by {-bad:.3g}"
    return (
        f"{turns} good answers became less likely by {-good:.3g} nats a token{others}: "
        f"publish.max_fall allows {limits.max_fall:g}"
    )
