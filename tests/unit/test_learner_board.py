from threading import Event

from sqlalchemy.exc import OperationalError

from dukou.store.processes import HEARTBEAT_SECONDS, STOPPED, LearnerDetail
from learner.heartbeat import RETRY_SECONDS, HeartbeatWriter


class Clock:
    """Ends the writing after this many waits."""

    def __init__(self, waits: int) -> None:
        self.left, self.waited = waits, []

    def now(self) -> float:
        return 0.0

    def wait(self, event: Event, seconds: float) -> bool:
        self.waited.append(seconds)
        if len(self.waited) == self.left:
            event.set()
        return event.is_set()


def test_it_writes_what_is_shown_and_at_the_end_that_it_stopped():
    writer, clock, written = HeartbeatWriter("learner", LearnerDetail(trains=True)), Clock(2), []
    writer.show("waiting for samples", waits_for="traffic")
    writer.note_judge_paused("401")
    writer.note_trouble("out of memory")
    writer.write_until(Event(), clock, lambda heartbeat: written.append(heartbeat) or True)
    assert [one.doing for one in written] == ["waiting for samples"] * 2 + [STOPPED]
    assert (written[0].name, written[0].waits_for) == ("learner", "traffic")
    assert written[0].detail == LearnerDetail(trains=True, judge_paused="401", trouble="out of memory")
    assert clock.waited == [HEARTBEAT_SECONDS] * 2


def test_a_heartbeat_that_fails_is_tried_again_soon():
    clock = Clock(2)

    def write(_: object) -> bool:
        if len(clock.waited) == 0:
            raise OperationalError("insert", {}, Exception("gone"))
        return False

    HeartbeatWriter("learner", LearnerDetail()).write_until(Event(), clock, write)
    assert clock.waited == [RETRY_SECONDS] * 2
