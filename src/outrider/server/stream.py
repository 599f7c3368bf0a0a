"""Answers on the wire: server-sent events, or one JSON object. Both end early when the client goes away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outrider.server.answer import DONE, Answer, event
from outrider.server.errors import APIError
from outrider.server.generation import Generation
from outrider.server.service import Service

_AT_ONCE = 64
"""Steps that are written into one piece, where a client has been slow."""

_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # no proxy is to hold events back


@contextmanager
def attended(service: Service, generation: Generation, receive: Receive) -> Iterator[None]:
    """While the client is there the generation runs; afterwards its place is given back, however it ended."""

    async def attend() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        generation.fail(APIError(499, "the client has gone away"))
        service.close(generation)

    watcher = asyncio.create_task(attend())
    try:
        yield
    finally:
        watcher.cancel()
        service.close(generation)


class EventStream(Response):
    """A stream of events; the HTTP status waits for the first of them, so that an early failure has its own."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, generation: Generation, answer: Answer) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._service = service
        self._generation = generation
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with attended(self._service, self._generation, receive):
            started = False
            try:
                async for additions in self._generation.updates():
                    if not started:
                        started = True
                        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    for begin in range(0, len(additions), _AT_ONCE):
                        await self._write(send, self._answer.events(additions[begin : begin + _AT_ONCE]))
                ending = self._answer.ending()
            except APIError as error:
                if not started:
                    await error.response()(scope, receive, send)
                    return
                ending = event(error.body) + DONE
            await send({"type": "http.response.body", "body": ending, "more_body": False})

    async def _write(self, send: Send, body: bytes) -> None:
        self._generation.sending_since = time.perf_counter()
        await send({"type": "http.response.body", "body": body, "more_body": True})
        self._generation.sending_since = None


async def whole_answer(service: Service, generation: Generation, answer: Answer, receive: Receive) -> Response:
    """The answer in one piece. Raises APIError."""
    with attended(service, generation, receive):
        return Response(answer.whole(await generation.whole()), media_type="application/json")
