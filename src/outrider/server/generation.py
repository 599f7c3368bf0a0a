"""One API call on the event loop: its place in the queue, and its texts as they are written."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence

from outrider.request import Emitted, Request
from outrider.server.errors import APIError, from_library

AT_ONCE = 16
"""Steps whose additions are written in one go: a few milliseconds with all log-probabilities."""


class Generation:
    """Collects what the steps add to some requests, until somebody asks for it; a slow reader costs memory alone, and
    no more than its texts are long.

    texts    places that it takes in the queue.
    arrived  when it came, and when it must be over; seconds of `time.perf_counter`.
    failure  why it is over, if it has failed.
    """

    def __init__(self, texts: int, timeout: float) -> None:
        self.texts = texts
        self.arrived = time.perf_counter()
        self.deadline = self.arrived + timeout
        self.requests: Sequence[Request] = ()
        self.failure: APIError | None = None
        self._over: set[int] = set()
        self._pending: deque[Emitted] = deque()
        self._news = asyncio.Event()
        self._whole = False

    def over(self, request: Request) -> bool:
        """Whether a text has come to its end."""
        return request.id in self._over

    def add(self, emitted: Emitted) -> None:
        """A step has added something."""
        if emitted.finish_reason is not None:
            self._over.add(emitted.request.id)
        if emitted.request.error is not None:
            self.fail(from_library(emitted.request.error))
            return
        self._pending.append(emitted)
        if not self._whole or len(self._over) == self.texts:
            self._news.set()

    def fail(self, error: APIError) -> None:
        """It is over, for this reason; the first counts."""
        self.failure = self.failure or error
        self._news.set()

    async def updates(self) -> AsyncIterator[list[Emitted]]:
        """What has come since the last time, in order, to the end of all texts, little at once, so that others have
        the event loop in between. Raises APIError if it fails, whatever a slow reader has not had by then."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._pending:
                yield [self._pending.popleft() for _ in range(min(AT_ONCE, len(self._pending)))]
                if self.failure:
                    break
                if self._pending:
                    await asyncio.sleep(0)
            if self.failure:
                raise self.failure
            if len(self._over) == self.texts:
                return

    async def whole(self) -> list[Emitted]:
        """Everything, once it is there. Raises APIError if it fails."""
        self._whole = True
        return [emitted async for pending in self.updates() for emitted in pending]
