"""How the engine is started, and what its log says about its death: values only."""

from pathlib import Path

import pytest

from dukou.local.engine.start import arguments, death, environment, model_path, why_dead
from dukou.settings.model import Config


def after(given: list[str], flag: str) -> str:
    return given[given.index(flag) + 1]


def test_every_engine_starts_labelled_0_with_a_parser_and_idle_sleep() -> None:
    for gpu in (False, True):
        given = arguments(Config(), Path("m"), gpu=gpu)
        assert after(given, "--weight-version") == "0"
        assert after(given, "--tool-call-parser") == "qwen25"
        assert after(given, "--sampling-defaults") == "model"
        assert "--sleep-on-idle" in given
        assert ("--device" in given) is not gpu


def test_what_the_model_recommends_is_left_aside_where_the_setting_says_so() -> None:
    config = Config.model_validate({"engine": {"sampling_defaults": "openai"}})
    assert after(arguments(config, Path("m"), gpu=True), "--sampling-defaults") == "openai"


def test_it_listens_where_the_gateway_looks_for_it() -> None:
    config = Config.model_validate({"engine": {"urls": ["http://127.0.0.1:31999"]}})
    given = arguments(config, Path("m"), gpu=True)
    assert (after(given, "--host"), after(given, "--port")) == ("127.0.0.1", "31999")


def test_adapters_are_enabled_for_the_trainers_rank_and_targets_only_where_they_are_published() -> None:
    config = Config.model_validate(
        {"publish": {"form": "adapter"}, "trainer": {"lora_rank": 4, "lora_targets": ["q_proj", "v_proj"]}}
    )
    given = arguments(config, Path("m"), gpu=False)
    assert after(given, "--max-lora-rank") == "4"
    at = given.index("--lora-target-modules")
    assert given[at + 1 : at + 3] == ["q_proj", "v_proj"]
    assert after(given, "--lora-backend") == "torch_native"
    assert "--enable-lora" not in arguments(Config(), Path("m"), gpu=False)


def test_a_cpu_that_multiplies_no_bfloat16_serves_in_float32() -> None:
    without = arguments(Config(), Path("m"), gpu=False, bfloat16=False)
    assert after(without, "--dtype") == "float32"
    assert "--dtype" not in arguments(Config(), Path("m"), gpu=False, bfloat16=True)
    assert "--dtype" not in arguments(Config(), Path("m"), gpu=True, bfloat16=False)


def test_extra_arguments_come_last_so_that_they_win() -> None:
    config = Config.model_validate({"engine": {"extra_args": ["--weight-version", "7"], "api_key": "k"}})
    given = arguments(config, Path("m"), gpu=True)
    assert given[-2:] == ["--weight-version", "7"]
    assert after(given, "--api-key") == "k"


def test_a_cpu_engine_gets_one_thread_and_never_asks_the_hub() -> None:
    cpu = environment({"A": "1"}, gpu=False)
    assert cpu == {"A": "1", "HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
    assert environment({}, gpu=True) == {"HF_HUB_OFFLINE": "1"}


def test_an_engine_of_ours_puts_no_grammar_over_tools_that_are_not_strict() -> None:
    told = environment({"SGLANG_TOOL_STRICT_LEVEL": "2", "SGLANG_X": "1"}, gpu=True)
    assert told == {"SGLANG_X": "1", "HF_HUB_OFFLINE": "1"}


def test_without_a_model_path_the_model_of_make_engine_is_served() -> None:
    assert model_path(Config(state_dir=Path("s"))) == Path("s/models/smollm2-135m")
    assert model_path(Config.model_validate({"engine": {"model_path": "m"}})) == Path("m")


TAKEN = "x\n[Errno 98] error while attempting to bind on address: address already in use\n"
NO_MEMORY = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\nKilled"
NO_GPU_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
SHAPE = "RuntimeError: The size of tensor a (64) must match the size of tensor b (32)\nmore\n"
NO_MODEL = "HFValidationError: Repo id must be in the form 'namespace/name': '/x'\n"
TRACEBACK = "Traceback (most recent call last):\n  File x\nValueError: odd\n[2026-01-01] INFO bye\n"


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (TAKEN, "port is taken"),
        (NO_MEMORY, "ran out of memory"),
        (NO_GPU_MEMORY, "ran out of memory"),
        (SHAPE, "tensor a (64)"),
        (NO_MODEL, "model cannot be found"),
        ("launch_server.py: error: unrecognized arguments: --sleep-on-idel\n", "--sleep-on-idel"),
        ("ModuleNotFoundError: No module named 'sgl_kernel'\n", "run `make engine`"),
        (TRACEBACK, "ValueError: odd"),
        ("[2026-01-01 10:00:00] AssertionError: tp 3\n", "AssertionError: tp 3"),
        ("loading\nKilled\n\n", "its last words were: Killed"),
        ("", "it said nothing"),
    ],
)
def test_a_log_is_read_for_the_cause_of_death(log: str, says: str) -> None:
    assert says in why_dead(log)


def test_of_two_exceptions_the_last_is_the_cause() -> None:
    assert why_dead("KeyError: 'a'\nDuring handling…\nRuntimeError: b\n") == "RuntimeError: b"


def test_a_killed_engine_is_said_to_be_killed_whatever_its_log_says(tmp_path: Path) -> None:
    config = Config.model_validate({"state_dir": tmp_path})
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "engine.log").write_text("No module named 'openai_harmony'\n")
    assert "was killed (SIGKILL)" in death(config, -9)
    assert "ended with code 1" in death(config, 1)
