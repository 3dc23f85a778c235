"""The routes file: what is written is read back, and what another release writes is understood."""

import orjson
import pytest

from gateway.routes import BadRoutesError, EngineFacts, EngineRoute, OtherVersions, Routes, dump, load

FACTS = EngineFacts({"temperature": 0.6}, 49152, {"parser": "qwen", "grammar": None})
ENGINE = EngineRoute("http://a", "updating", 3, 4, "default-v3", "sglang", "why", {5: "default-v5"}, FACTS)
OTHERS = OtherVersions(5, 0.2, {"t/s": 3})
ROUTES = Routes((ENGINE, EngineRoute("http://b", "dead")), OTHERS, "default", "m", 7)


def test_what_is_written_is_read_back() -> None:
    assert load(dump(ROUTES)) == ROUTES
    assert load(dump(Routes())) == Routes()


def test_the_names_in_the_file_stay() -> None:
    """Workers of the release before read the file during an upgrade."""
    assert orjson.loads(dump(Routes((ENGINE,), OTHERS, "default", "m", 7))) == {
        "policy": "default",
        "model": "m",
        "written_ns": 7,
        "trial": {"version": 5, "share": 0.2},
        "pins": {"t/s": 3},
        "engines": [
            {
                "url": "http://a",
                "state": "updating",
                "reason": "why",
                "version_low": 3,
                "version_high": 4,
                "adapter": "default-v3",
                "dialect": "sglang",
                "beside": {"5": "default-v5"},
                "sampling_defaults": {"temperature": 0.6},
                "vocab_size": 49152,
                "tool_calling": {"parser": "qwen", "grammar": None},
            }
        ],
    }


def test_unknown_fields_are_ignored_and_missing_ones_filled_in() -> None:
    text = orjson.dumps({"engines": [{"url": "http://a/", "state": "ready", "new": 1}], "newer": {}})
    assert load(text) == Routes((EngineRoute("http://a"),))


@pytest.mark.parametrize(
    "field", ["version_low", "adapter", "dialect", "reason", "vocab_size", "tool_calling"]
)
def test_a_field_of_another_type_counts_as_missing(field: str) -> None:
    assert load(orjson.dumps({"engines": [{"url": "http://a", "state": "ready", field: [1]}]})) == Routes(
        (EngineRoute("http://a"),)
    )


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"7",
        b'{"engines": null}',
        b'{"engines": ["http://a"]}',
        b'{"engines": [{"state": "ready"}]}',
        b'{"engines": [{"url": "http://a"}]}',
        b'{"engines": [{"url": 1, "state": "ready"}]}',
        b'{"engines": [{"url": "http://a", "state": "ready", "beside": {"x": "y"}}]}',
    ],
)
def test_what_is_no_routes_file_is_refused(text: bytes) -> None:
    with pytest.raises(BadRoutesError):
        load(text)


def test_an_id_must_be_known_to_every_engine_whose_vocabulary_is_known() -> None:
    sizes = (None, 9, 7)
    engines = tuple(EngineRoute(f"http://{n}", facts=EngineFacts(vocab_size=n)) for n in sizes)
    assert Routes(engines).vocab_size == 7
    assert Routes(engines[:1]).vocab_size is None
