import pytest

from dukou.settings.load import ExpansionError, expand, expand_items, split

ENVIRON = {"A": "1", "EMPTY": "", "TWO": "x, y,", "TRICKY": "${A}$$"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("${A}", "1"),
        ("<${A}${A}>", "<11>"),
        ("${EMPTY}", ""),
        ("${EMPTY:-d}", "d"),
        ("${NONE:-d e:-f}", "d e:-f"),
        ("${NONE:-}", ""),
        ("${A:-d}", "1"),
        ("$$", "$"),
        ("$${A}", "${A}"),
        ("a$b $ 5$", "a$b $ 5$"),
        ("${TRICKY}", "${A}$$"),
    ],
)
def test_references_are_replaced_once(text, expected):
    assert expand(text, ENVIRON) == expected


def test_every_missing_variable_is_named():
    with pytest.raises(ExpansionError, match="NONE and OTHER are not set"):
        expand("${NONE} ${A} ${OTHER} ${NONE}", ENVIRON)


@pytest.mark.parametrize("text", ["${", "${A", "${}", "${1A}", "${A-d}", "${é}"])
def test_a_malformed_reference_is_an_error(text):
    with pytest.raises(ExpansionError, match=r"a plain dollar sign is \$\$"):
        expand(text, ENVIRON)


def test_a_reference_in_a_default_is_an_error():
    with pytest.raises(ExpansionError, match="not supported"):
        expand("${NONE:-${A}}", ENVIRON)


def test_only_items_with_a_reference_are_split():
    assert expand_items(["a,b", "${TWO}", 3], ENVIRON) == ["a,b", "x", "y", 3]
    assert expand_items("${TWO}", ENVIRON) == ["x", "y"]
    assert expand_items(["${NONE:-}"], ENVIRON) == []
    assert expand_items(7, ENVIRON) == 7


def test_a_json_list_keeps_commas_inside_items():
    assert split('["--a=1,2", "b"]') == ["--a=1,2", "b"]
    with pytest.raises(ExpansionError, match="not a JSON list"):
        split("[a, b")
