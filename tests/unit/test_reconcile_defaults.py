"""What an engine takes for left-out fields: read from /server_info and the model's own file, or unknown."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.drain.sampling import DEFAULT_FIELDS as FIELDS
from gateway.reconcile.engine_facts import (
    UnknownDefaultsError,
    parse,
    preferred,
    read,
    recommended,
)
from tests.fakes.server_info import ServerInfoEngine

QWEN3 = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}


def info(**said):
    """What the reconciler understands of a /server_info that says this."""
    with ServerInfoEngine(**said).control() as control:
        return control.server_info()


def model(folder, content=None):
    """A model's folder; `content` of its generation_config.json, None: it has none."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    if content is not None:
        (folder / "generation_config.json").write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"{}", {}),
        (json.dumps(QWEN3 | {"do_sample": False, "max_new_tokens": 9, "bos_token_id": 1}).encode(), QWEN3),
        (b'{"temperature": null, "top_k": 0, "repetition_penalty": 1.05, "presence_penalty": 1.5}',
         {"top_k": 0, "repetition_penalty": 1.05}),
        (b'{"temperature": 0.6, "temperature": 0.7}', {"temperature": 0.7}),
    ],
)  # fmt: skip
def test_of_a_models_file_the_fields_count_that_the_engine_takes(content, found):
    """Held against transformers 5.19 and SGLang 0.5.23, which read these files so."""
    assert parse(content) == found


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is no JSON"),
        (b"\xff", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"[1]", "is no JSON object"),
        (b'{"temperature": "0.6"}', "has a temperature that is no finite number"),
        (b'{"top_k": true}', "has a top_k that is no finite number"),
        (b'{"min_p": NaN}', "has a min_p that is no finite number"),
        (b'{"top_p": 1' + b"0" * 400 + b"}", "has a top_p that is no finite number"),
        (b" " * (2**20 + 1), "has more than 1048576 bytes"),
    ],
)
def test_a_file_that_makes_no_sense_leaves_the_defaults_unknown(tmp_path, content, why):
    folder = model(tmp_path / "m", content)
    with pytest.raises(UnknownDefaultsError, match=why):
        recommended(folder)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "0.6", [1]])
FILES = st.dictionaries(st.sampled_from((*FIELDS, "x")), VALUES).map(lambda made: json.dumps(made).encode())


@given(FILES | st.binary(max_size=40))
def test_whatever_the_file_holds_numbers_come_of_it_or_an_error(content):
    try:
        found = parse(content)
    except ValueError:
        return
    assert set(found) <= set(FIELDS)
    assert all(float("-inf") < value < float("inf") for value in found.values())


def test_a_model_without_the_file_recommends_nothing(tmp_path):
    assert recommended(model(tmp_path / "m")) == {}


@pytest.mark.parametrize("path", ["Qwen/Qwen3-8B", "models/here", "/no/such/folder", "/\x00"])
def test_a_model_that_this_host_does_not_see_recommends_nobody_knows_what(path):
    with pytest.raises(UnknownDefaultsError, match=r"absolute path|sees no model"):
        read(info(sampling_defaults="model", model_path=path))


def test_a_file_that_may_not_be_read_is_said_so(tmp_path, monkeypatch):
    folder = model(tmp_path / "m", b"{}")

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(folder), "open", refused)  # root may read everything
    with pytest.raises(UnknownDefaultsError, match="cannot be read: Permission denied"):
        recommended(folder)


@pytest.mark.parametrize("prefers", [{"temperature": 0.3, "top_p": 0.5}, '{"temperature": 0.3}', None, "x"])
def test_the_file_counts_with_model_and_nothing_with_openai(tmp_path, prefers):
    """What is preferred reaches no chat request: each sets every such field itself."""
    said = {"model_path": str(model(tmp_path / "m", json.dumps(QWEN3).encode()))}
    said["preferred_sampling_params"] = prefers
    assert read(info(sampling_defaults="model", **said)) == QWEN3
    assert read(info(sampling_defaults="openai", **said)) == {}


def test_preferences_that_no_chat_request_sets_hold_for_chat_too():
    kept = {"json_schema": "{}", "structural_tag": "t", "beam_width": 2}
    assert preferred(kept | {"temperature": 0.1, "regex": "a"}) == kept
    assert preferred({"beam_width": 1, "json_schema": None}) == {}


@pytest.mark.parametrize(
    "said", [{}, {"sampling_defaults": None}, {"sampling_defaults": "vendor"}, {"sampling_defaults": "model"}]
)
def test_an_engine_that_does_not_say_is_unknown(said):
    with pytest.raises(UnknownDefaultsError, match="it does not say"):
        read(info(**said))
