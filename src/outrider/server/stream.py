"""Answers on the wire: server-sent events, or one JSON object. Both end early when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from outrider.server.answer import DONE, Answer, event
from outrider.server.errors import APIError
from outrider.server.generation import Generation
from outrider.server.service import Service

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
        patience = self._service.settings.stall

        async def patient(message: Message) -> None:
            """One that reads nothing for so long is given up; the connection is closed, as the answer has no end."""
            async with asyncio.timeout(patience):
                await send(message)

        with attended(self._service, self._generation, receive), suppress(TimeoutError):
            await self._send(scope, receive, patient)

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        try:
            async for additions in self._generation.updates():
                if not started:
                    started = True
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                body = self._answer.events(additions)
                await send({"type": "http.response.body", "body": body, "more_body": True})
            ending = self._answer.ending()
        except APIError as error:
            if not started:
                await error.response()(scope, receive, send)
                return
            ending = event(error.body) + DONE
        await send({"type": "http.response.body", "body": ending, "more_body": False})


async def whole_answer(service: Service, generation: Generation, answer: Answer, receive: Receive) -> Response:
    """The answer in one piece. Raises APIError."""
    with attended(service, generation, receive):
        return Response(await answer.whole(await generation.whole()), media_type="application/json")
