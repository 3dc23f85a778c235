from gateway.parse.text import Marker


def test_nul_is_marked_in_keys_and_values_and_literal_escapes_stay():
    mark = Marker()
    marked = mark.json([{"a\x00": ["b\x00c", {"d": "\x00"}]}, "C:\\u0000dir"])
    assert marked == [{"a␀": ["b␀c", {"d": "␀"}]}, "C:\\u0000dir"]
    assert mark.altered


def test_lone_surrogates_are_marked_and_whole_pairs_stay():
    mark = Marker()
    assert mark.text("a\ud83db 🚀") == "a�b 🚀"
    assert mark.altered


def test_what_can_be_held_is_left_alone():
    mark = Marker()
    value = {"a": [1, 1.5, True, None, "text 那"]}
    assert mark.json(value) == value
    assert mark.text(None) is None
    assert not mark.altered


def test_numbers_that_json_lacks_are_null():
    mark = Marker()
    assert mark.json([float("nan"), float("-inf")]) == [None, None]
    assert mark.altered
