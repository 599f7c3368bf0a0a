"""Ctrl-C while the model writes or learns: it ends texts and training, not the program, and leaves all of it whole."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.request import Request


@contextmanager
def cancelling(llm: LLM, requests: Sequence[Request]) -> Iterator[None]:
    """Meanwhile, Ctrl-C cancels the requests: `llm.run` then goes on to their ends, with what they have so far."""
    previous = signal.getsignal(signal.SIGINT)
    if previous is signal.SIG_IGN:  # as in a shell's background jobs
        yield
        return

    def cancel(*_: object) -> None:
        for request in requests:
            llm.cancel(request)

    signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def noticed() -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether Ctrl-C was pressed meanwhile; the second time, it interrupts as usual."""
    previous = signal.getsignal(signal.SIGINT)
    pressed: list[int] = []

    def notice(number: int, _: object) -> None:
        pressed.append(number)
        signal.signal(signal.SIGINT, previous)

    if previous is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, notice)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, previous)
