"""The lock of the library goes to whoever has waited longest."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from outrider.turns import FairLock


class LastComesFirst(FairLock):
    """A planted fault: the lock goes to whoever came last."""

    def __exit__(self, *_: object) -> None:
        self._waiting.reverse()
        super().__exit__()
        self._waiting.reverse()


def order_of_entry(lock: FairLock, threads: int = 4) -> list[int]:
    """Who enters when, if all come one after another while the lock is held."""
    order: list[int] = []

    def work(number: int) -> None:
        with lock:
            order.append(number)

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
    with lock:
        for number, worker in enumerate(workers):
            worker.start()
            deadline = time.monotonic() + 10
            while len(lock._waiting) <= number and time.monotonic() < deadline:
                time.sleep(0.001)
    for worker in workers:
        worker.join(10)
    return order


def test_each_enters_in_the_order_of_arrival() -> None:
    assert order_of_entry(FairLock()) == [0, 1, 2, 3]


def test_an_unfair_lock_is_seen() -> None:
    """Negative control."""
    assert order_of_entry(LastComesFirst()) != [0, 1, 2, 3]


def test_it_is_free_again_after_an_exception() -> None:
    lock = FairLock()
    with pytest.raises(ZeroDivisionError), lock:
        _ = 1 / 0
    with lock:
        pass


class Interrupted:
    """The turn of a thread that is interrupted while it waits: before the lock is handed to it, or just after."""

    def __init__(self, *, late: bool) -> None:
        self._turn = threading.Lock()
        self._late = late

    def acquire(self) -> None:
        if self._turn.locked():
            if self._late:
                self._turn.acquire()
            raise KeyboardInterrupt
        self._turn.acquire()

    def release(self) -> None:
        self._turn.release()


@pytest.mark.parametrize("late", [False, True])
def test_who_is_interrupted_while_waiting_is_waited_for_by_nobody(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    lock = FairLock()
    ended: list[str] = []

    def wait() -> None:
        try:
            with lock:
                ended.append("entered")
        except KeyboardInterrupt:
            ended.append("interrupted")

    def run() -> threading.Thread:
        before = len(lock._waiting)
        worker = threading.Thread(target=wait, daemon=True)
        worker.start()
        deadline = time.monotonic() + 10
        while len(lock._waiting) == before and worker.is_alive() and time.monotonic() < deadline:
            time.sleep(0.001)
        return worker

    with lock:
        monkeypatch.setattr("outrider.turns.threading", SimpleNamespace(Lock=lambda: Interrupted(late=late)))
        workers = [run()]
        monkeypatch.undo()
        workers += [run(), run()]
    for worker in workers:
        worker.join(10)
    assert sorted(ended) == ["entered", "entered", "interrupted"]
    assert not lock._held
