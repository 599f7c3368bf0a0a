"""A lock that is handed over in the order of arrival.

`threading.Lock` is not fair: a thread that gives it up and asks again gets it before those that have waited longer, so
one of several streams would run on while the others starve with their next words already made.
"""

from __future__ import annotations

import threading
from collections import deque


class FairLock:
    """A context manager; the longest waiting thread enters next. Not to be entered twice by one thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._held = False

    def __enter__(self) -> None:
        with self._guard:
            if not self._held:
                self._held = True
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            turn.acquire()
        except BaseException:  # such as Ctrl-C: whoever does not enter must not be waited for
            with self._guard:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                else:
                    self._hand_over()
            raise

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._waiting:
            self._waiting.popleft().release()  # it stays held, by the next
        else:
            self._held = False
