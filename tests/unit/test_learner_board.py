from threading import Event

from sqlalchemy.exc import OperationalError

from learner.board import BEAT_SECONDS, RETRY_SECONDS, Board
from store.funnel import STOPPED


class Clock:
    """Ends the reporting after so many waits."""

    def __init__(self, waits: int) -> None:
        self.left, self.waited = waits, []

    def now(self) -> float:
        return 0.0

    def wait(self, event: Event, seconds: float) -> bool:
        self.waited.append(seconds)
        if len(self.waited) == self.left:
            event.set()
        return event.is_set()


def test_it_reports_what_is_shown_and_in_the_end_that_it_stopped():
    board, clock, written = Board("learner", trains=True), Clock(2), []
    board.show("waiting for samples", waits_for="traffic")
    board.note(judge_paused="401")
    board.beat_until(Event(), clock, lambda beat: written.append(beat) or True)
    assert [beat.doing for beat in written] == ["waiting for samples"] * 2 + [STOPPED]
    assert (written[0].name, written[0].waits_for) == ("learner", "traffic")
    assert written[0].detail == {"trains": True, "judge_paused": "401"}
    assert clock.waited == [BEAT_SECONDS] * 2


def test_a_report_that_fails_is_tried_again_soon_and_hurts_nobody():
    clock = Clock(2)

    def write(_: object) -> bool:
        if len(clock.waited) == 0:
            raise OperationalError("insert", {}, Exception("gone"))
        return False

    Board("learner").beat_until(Event(), clock, write)
    assert clock.waited == [RETRY_SECONDS] * 2
