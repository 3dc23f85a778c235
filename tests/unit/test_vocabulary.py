"""How many ids a model knows, from its config.json; unknown where it does not say."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.reconcile.engine_facts import Vocabularies, size_in

URL = "http://a"


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"vocab_size": 7}, 7),
        ({"text_config": {"vocab_size": 7}, "vision_config": {"vocab_size": 999}}, 7),
        ({"thinker_config": {"text_config": {"vocab_size": 7}}}, 7),
        ({"vocab_size": 5, "text_config": {"vocab_size": 7}}, 7),
        ({"vocab_size": 5, "vision_vocab_size": 9}, 9),
        ({"vocab_size": "7"}, None),
        ({"vocab_size": 0}, None),
        ({"text_config": None}, None),
        ({}, None),
    ],
)
def test_the_size_is_the_language_models(config: dict[str, Any], size: int | None) -> None:
    assert size_in(config) == size


def folder(place: Path, config: object) -> Path:
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps(config))
    return place


def test_the_first_folder_that_says_a_size_says_the_engines(tmp_path: Path) -> None:
    known = Vocabularies()
    base = folder(tmp_path / "base", {"vocab_size": 9})
    known.saw(URL, "org/model-at-a-hub", base)
    assert (known.size(URL), known.knows(URL)) == (9, True)
    known.saw(URL, folder(tmp_path / "other", {"vocab_size": 5}), base)
    assert known.size(URL) == 5
    known.saw(URL, None, base)  # it did not say what it serves: it does not answer just now
    assert known.size(URL) == 5
    known.forget(URL)
    assert (known.size(URL), known.knows(URL)) == (None, False)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"vocab_size": null}'])
def test_a_file_that_says_nothing_leaves_it_unknown(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    known = Vocabularies()
    known.saw(URL, tmp_path)
    assert (known.size(URL), known.knows(URL)) == (None, True)


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    known = Vocabularies()
    known.saw(URL, folder(tmp_path, {"vocab_size": 9}))
    folder(tmp_path, {"vocab_size": 11})
    os.utime(tmp_path / "config.json", ns=(1, 1))
    known.saw(URL, tmp_path)
    assert known.size(URL) == 11
