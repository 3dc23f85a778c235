"""A few blocking calls at once, on daemon threads: a hanging judge does not hold up the end of a process."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_parallel(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Runs every task and returns the results in order; an exception is raised after all have ended."""
    if len(tasks) == 1:
        return [tasks[0]()]
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def run(n: int) -> None:
        try:
            results[n] = tasks[n]()
        except BaseException as error:  # carried to the caller's thread
            errors[n] = error

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [results[n] for n in range(len(tasks))]
