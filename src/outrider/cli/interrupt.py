"""Ctrl-C while the model writes: it ends texts, not the program, and leaves engine and terminal whole."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
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
