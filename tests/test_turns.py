"""The lock of the library goes to whoever has waited longest."""

from __future__ import annotations

import threading
import time

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
