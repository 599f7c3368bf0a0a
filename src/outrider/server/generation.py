"""One API call on the event loop: its place in the queue, and its texts as they are written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from outrider.request import Emitted, Request
from outrider.server.errors import APIError, from_library


class Generation:
    """Collects what the steps add to some requests, until somebody asks for it; a slow reader costs memory alone, and
    no more than its texts are long.

    texts          places that it takes in the queue.
    arrived        when it came, and when it must be over; seconds of `time.perf_counter`.
    sending_since  when the client was last sent something that it has not taken yet.
    """

    def __init__(self, texts: int, timeout: float) -> None:
        self.texts = texts
        self.arrived = time.perf_counter()
        self.deadline = self.arrived + timeout
        self.sending_since: float | None = None
        self.requests: Sequence[Request] = ()
        self._over: set[int] = set()
        self._pending: list[Emitted] = []
        self._failure: APIError | None = None
        self._news = asyncio.Event()
        self._whole = False

    @property
    def unfinished(self) -> bool:
        """Whether more is to come."""
        return len(self._over) < self.texts and self._failure is None

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
        self._failure = self._failure or error
        self._news.set()

    async def updates(self) -> AsyncIterator[list[Emitted]]:
        """What has come since the last time, in order, to the end of all texts. Raises APIError if it fails."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._pending:
                pending, self._pending = self._pending, []
                yield pending
            if self._failure:
                raise self._failure
            if len(self._over) == self.texts:
                return

    async def whole(self) -> list[Emitted]:
        """Everything, once it is there. Raises APIError if it fails."""
        self._whole = True
        return [emitted async for pending in self.updates() for emitted in pending]
