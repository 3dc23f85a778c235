"""Planted faults: what must never reach an engine, and what must not stay there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.models import BASE, write_adapter, write_model
from tests.fakes.sglang import FakeSGLang
from tests.fakes.world import World

Q = "model.layers.0.self_attn.q_proj.weight"


def missing(folder: Path) -> None:
    write_model(folder, {name: tensor for name, tensor in BASE.items() if name != Q})


def wrong_shape(folder: Path) -> None:
    write_model(folder, BASE | {Q: BASE["model.norm.weight"]})


def not_a_number(folder: Path) -> None:
    write_model(folder, fill=0xFF)  # BF16 0xFFFF is a NaN


def half_a_file(folder: Path) -> None:
    file = write_model(folder) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])


def another_tokenizer(folder: Path) -> None:
    (write_model(folder) / "tokenizer.json").write_text('{"model": "other"}')


def another_template(folder: Path) -> None:
    (write_model(folder) / "tokenizer_config.json").write_text('{"chat_template": "{{ x }}"}')


def another_configuration(folder: Path) -> None:
    (write_model(folder) / "config.json").write_text('{"tie_word_embeddings": true, "rope_theta": 9}')


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (missing, f"lacks the tensor {Q}"),
        (wrong_shape, f"its tensor {Q} is BF16 [4], the base model's is BF16 [8, 4]"),
        (not_a_number, "its tensor model.embed_tokens.weight holds a value that is not finite"),
        (half_a_file, "model.safetensors should hold 200 bytes of tensors and holds 193"),
        (another_tokenizer, "its tokenizer.json is not the base model's"),
        (another_template, "its tokenizer_config.json has another chat_template"),
        (another_configuration, "its config.json has another rope_theta"),
    ],
)
def test_a_bad_checkpoint_is_refused_before_the_engine_hears_of_it(
    world: World, fake: FakeSGLang, plant: Callable[[Path], None], says: str
) -> None:
    world.tick()
    plant(world.folder / "bad")
    world.make(1, folder=world.folder / "bad")
    world.live(1)
    (route,) = world.tick()
    assert fake.asked() == []
    assert (route["state"], route["version_low"], world.live_version()) == ("ready", 0, 0)
    status, reason = world.status(1)
    assert status == "refused"
    assert says in str(reason)


@pytest.mark.parametrize("setting", ['"use_dora": true', '"bias": "all"', '"modules_to_save": ["lm_head"]'])
def test_an_adapter_that_engines_would_serve_in_part_is_refused(
    world: World, fake: FakeSGLang, setting: str
) -> None:
    folder = write_adapter(world.folder / "bad")
    (folder / "adapter_config.json").write_text(f'{{"r": 2, {setting}}}')
    world.make(1, "adapter", folder=folder)
    world.live(1)
    world.tick()
    assert fake.asked() == []
    assert "which engines leave out" in str(world.status(1)[1])


def test_full_weights_are_refused_for_a_quantised_base_model(world: World, fake: FakeSGLang) -> None:
    """W13."""
    config = '{"tie_word_embeddings": true, "quantization_config": {"quant_method": "fp8"}}'
    (world.folder / "base" / "config.json").write_text(config)
    world.make(1)
    world.live(1)
    world.tick()
    assert fake.asked() == []
    assert "the base model is quantised (fp8)" in str(world.status(1)[1])


def test_a_tensor_that_the_engine_dropped_is_found_though_it_said_success(
    world: World, fake: FakeSGLang
) -> None:
    """W8."""
    world.tick()
    fake.drops = {"model.embed_tokens.weight"}
    world.make(1)
    world.live(1)
    world.tick()
    assert world.status(1) == (
        "refused",
        "its tensor model.embed_tokens.weight is not on the engine as it was written",
    )
    assert world.live_version() == 0


def test_weights_that_stayed_the_old_ones_are_found_also_at_the_second_update(
    world: World, fake: FakeSGLang
) -> None:
    """W8, W14: the second update may go wrong where the first did not."""
    world.make(1)
    world.live(1)
    world.tick()
    fake.drops = set(BASE)
    world.make(2)
    world.live(2)
    world.tick()
    assert "(and 2 more)" in str(world.status(2)[1])
    assert world.live_version() == 1


def test_where_checksums_are_of_another_kind_nothing_is_concluded_from_them(
    world: World, fake: FakeSGLang
) -> None:
    sums = {"success": True, "ranks": [{"checksums": dict.fromkeys(BASE, "f00d")}]}
    fake.replies["/weights_checker"] = [(200, sums)] * 9
    world.make(1)
    world.live(1)
    (route,) = world.tick()
    assert route["version_low"] == 1
    assert "a GPU's" in world.published()[-1].probe["tensors_missing"]


def test_an_engine_that_has_no_checksums_is_probed_all_the_same(world: World, fake: FakeSGLang) -> None:
    fake.replies["/weights_checker"] = [(404, {"detail": "Not Found"})] * 9
    world.make(1)
    world.live(1)
    (route,) = world.tick()
    assert route["version_low"] == 1
    assert world.published()[-1].probe["mean_abs_diff"] == 0.0


def test_an_engine_that_answers_nan_does_not_serve_that_version(world: World, fake: FakeSGLang) -> None:
    """W13."""
    world.tick()
    fake.skews[str(world.make(1))] = float("nan")
    world.live(1)
    (route,) = world.tick()
    assert route["version_low"] == 0
    assert world.status(1)[0] == "refused"
