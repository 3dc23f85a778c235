"""The fault bench's own accounting: what it would call lost, doubled, damaged or unexplained."""

from bench.faulting.books import Books, Failure, Killed, Row, account
from bench.faulting.engine import answer_to


def row(asked: str, parent: str | None = None, **changes: object) -> Row:
    known = {
        "turn_id": f"t-{asked}",
        "parent_id": parent,
        "status": "ok",
        "text": answer_to(asked),
    }
    return Row(asked, **(known | changes))  # type: ignore[arg-type]


def test_all_is_well_when_each_is_there_once_below_the_one_before() -> None:
    found = account({"a": None, "b": "a"}, [row("a"), row("b", "t-a"), row("never acknowledged")])
    assert (found.recorded, found.lost, found.duplicated, found.damaged, found.misplaced) == (
        2,
        (),
        (),
        (),
        (),
    )


def test_what_is_wrong_is_found() -> None:
    acknowledged = {"a": None, "b": "a", "c": "b", "d": None, "e": None}
    rows = [row("a"), row("a"), row("b", "t-x"), row("d", text="half"), row("e", status="interrupted")]
    found = account(acknowledged, rows)
    assert found.lost == ("c",)
    assert found.duplicated == ("a",)
    assert found.misplaced == ("b",)
    assert found.damaged == ("d", "e")


def test_only_failures_of_clients_whose_own_worker_was_killed_are_explained() -> None:
    books = Books(kills=[Killed(10.0, frozenset({1}), 11.0), Killed(20.0, None, 22.0)])
    hit = Failure("a", 1, 9.0, 10.1, "reset")
    other_worker = Failure("b", 2, 9.0, 10.1, "reset")
    earlier = Failure("c", 1, 5.0, 9.0, "reset")
    while_all_was_down = Failure("d", 0, 21.0, 21.1, "refused")
    after = Failure("e", 3, 22.5, 23.0, "refused")
    books.failures = [hit, other_worker, earlier, while_all_was_down, after]
    assert [failure.id for failure in books.unexplained()] == ["b", "c", "e"]
