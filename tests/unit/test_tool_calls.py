import pytest

from gateway.parse.stream import ToolCalls


def fold(*deltas):
    calls = ToolCalls()
    for delta in deltas:
        calls.add(delta)
    return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls.finish()]


def piece(index=None, id=None, name=None, arguments=None):
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    made = {"function": function}
    return made | {key: value for key, value in (("index", index), ("id", id)) if value is not None}


WANTED = [("a", "add", '{"x":1}'), ("b", "mul", '{"x":2}')]


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param(
            [
                [piece(0, "a", "add", "")],
                [piece(0, None, None, '{"x"')],
                [piece(0, None, None, ":1}")],
                [piece(1, "b", "mul", '{"x":2}')],
            ],
            id="as OpenAI does",
        ),
        pytest.param(
            [
                [piece(None, "a", "add", ""), piece(None, "b", "mul", "")],
                [piece(None, "a", None, '{"x":1}'), piece(None, "b", None, '{"x":2}')],
            ],
            id="no index, ids repeated",
        ),
        pytest.param(
            [
                [piece(None, "a", "add", '{"x":')],
                [piece(None, None, None, "1}")],
                [piece(None, "b", "mul", '{"x":2}')],
            ],
            id="no index, the id once",
        ),
        pytest.param(
            [[piece(0, "a", "add", '{"x":1}')], [piece(0, "b", "mul", '{"x":')], [piece(0, "b", None, "2}")]],
            id="one index for all",
        ),
        pytest.param(
            [
                [piece(0, None, "add", '{"x":1}'), piece(1, None, "mul", '{"x":')],
                [piece(0, "a")],
                [piece(1, "b", None, "2}")],
            ],
            id="late ids",
        ),
        pytest.param(
            [
                [piece(0, "a", "add", '{"x"'), piece(1, "b", "mul")],
                [piece(1, "b", "mul", {"x": 2})],
                [piece(0, "a", "add", ":1}")],
            ],
            id="interleaved, names repeated, arguments as an object",
        ),
    ],
)
def test_two_calls_come_out_however_they_are_numbered(deltas):
    """S17."""
    assert fold(*deltas) == WANTED


def test_the_position_tells_calls_apart_that_have_neither_index_nor_id():
    deltas = ([piece(name="add"), piece(name="mul")], [piece(arguments="1"), piece(arguments="2")])
    assert fold(*deltas) == [(None, "add", "1"), (None, "mul", "2")]


@pytest.mark.parametrize("nonsense", [None, "x", [None, 3], [{}], [{"function": "f"}]])
def test_nonsense_raises_nothing(nonsense):
    assert all(name == "" for _, name, _ in fold(nonsense))


def test_argument_text_is_kept_as_it_came():
    """K13."""
    exact = '{"path": "a",  "content": "\\u0000"}'
    assert fold([piece(0, "a", "f", exact)])[0][2] == exact
