import json

import pytest

from dukou.store.batches import BaselineState
from dukou.store.contents import task_class
from learner.batch.advantage import Observation, centre, session_key

SETTINGS = {"half_life": 3.0, "deviation_floor": 0.2}


def of(*rewards, session="s", task="chat", start=0):
    return [Observation(f"{session}{start + n}", task, reward) for n, reward in enumerate(rewards)]


def run(batches):
    state = BaselineState()
    for number, rewards in enumerate(batches):
        result = centre(of(*rewards, start=100 * number), state, **SETTINGS)
        state = result.state
    return result


def test_the_own_session_has_no_part_in_its_baseline():
    one = centre(
        [Observation("mine", "chat", 1.0), Observation("other", "chat", 0.5)], BaselineState(), **SETTINGS
    )
    two = centre(
        [Observation("mine", "chat", -1.0), Observation("other", "chat", 0.5)], BaselineState(), **SETTINGS
    )
    assert one.baselines[0] == two.baselines[0]
    assert one.baselines[1] != two.baselines[1]


def test_the_own_session_has_no_part_through_earlier_batches_either():
    def last(earlier):
        state = centre(
            [Observation("mine", "chat", earlier), *of(0.5, 0.5)], BaselineState(), **SETTINGS
        ).state
        result = centre([Observation("mine", "chat", 0.0), *of(0.5)], state, **SETTINGS)
        return result.baselines

    assert last(1.0)[0] == last(-1.0)[0]
    assert last(1.0)[1] != last(-1.0)[1]


def test_a_steady_reward_is_learned_and_then_has_no_advantage():
    result = run([[0.6] * 16] * 12)
    assert result.baselines[0] == pytest.approx(0.6, abs=0.03)
    assert abs(result.advantages[0]) < 0.1


def test_in_the_first_batch_a_bad_answer_among_bad_ones_is_hardly_blamed():
    alike = run([[-1.0] * 16])
    mixed = run([[-1.0] + [1.0] * 15])
    assert mixed.advantages[0] < alike.advantages[0] < 0


def test_a_class_leans_on_all_traffic_until_it_has_its_own():
    history = of(*[1.0] * 30, task="chat")
    rare = Observation("x", "tools", 0.0)
    fresh = centre([*history, rare], BaselineState(), **SETTINGS).baselines[-1]
    assert 0.8 < fresh < 1.0
    known = centre(
        [*history, *of(*[-1.0] * 30, session="t", task="tools"), rare], BaselineState(), **SETTINGS
    ).baselines[-1]
    assert known < -0.7


def test_half_is_forgotten_after_the_half_life():
    state = centre(of(*[1.0] * 8), BaselineState(), **SETTINGS).state
    weight = sum(row.weight for row in state.sessions)
    for number in range(3):
        state = centre(of(0.0, start=1000 * (number + 1)), state, **SETTINGS).state
    kept = sum(row.weight for row in state.sessions if row.total > 0)
    assert kept == pytest.approx(weight / 2)


def test_the_deviation_has_a_floor():
    settled = run([[0.5] * 64] * 40)
    assert settled.deviation == 0.2


def test_the_state_survives_json_and_forgets_old_sessions():
    state = BaselineState()
    for number in range(60):
        result = centre(of(*[0.3] * 4, start=10 * number), state, **SETTINGS)
        state = BaselineState.decode(json.loads(json.dumps(result.state.encode())))
    assert len(state.sessions) < 140
    assert state == result.state


def test_the_class_comes_from_the_prompt():
    assert task_class([{"role": "user"}], None) == "chat"
    assert task_class([{"role": "user"}], [{"type": "function"}]) == "tools"
    assert task_class([{"role": "assistant"}, {"role": "tool"}], [{}]) == "tool_result"
    assert task_class(None, None) == "chat"


def test_session_keys_of_two_tenants_differ_and_hide_the_id():
    assert session_key("a", "s") != session_key("b", "s")
    assert "secret-session" not in session_key("a", "secret-session")
