"""Between HTTP and the engine: who is let in, who is told what, and who has waited long enough.

Everything here runs on the event loop, but for `emitted` and `failed`, which hand over to it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from outrider.llm import LLM
from outrider.request import Emitted, Request
from outrider.server.errors import APIError
from outrider.server.generation import Generation
from outrider.server.metrics import Metrics
from outrider.server.settings import Settings
from outrider.server.worker import Worker

log = logging.getLogger(__name__)

State = Literal["ok", "stalled", "stopping"]

_LOOK = 0.25
"""Seconds between two looks at the clocks."""


class Service:
    """Runs one LLM for many API calls; used as an asynchronous context.

    generation = service.open(1)
    service.start(generation, [request])
    async for emitted in generation.updates(): ...
    service.close(generation)
    """

    def __init__(self, llm: LLM, settings: Settings) -> None:
        self.llm = llm
        self.settings = settings
        self.metrics = Metrics(llm.engine)
        self._worker = Worker(llm.engine, emitted=self._emitted, failed=self._failed)
        self._pool = ThreadPoolExecutor(1, "outrider-prompts")
        self._generations: set[Generation] = set()
        self._owners: dict[int, Generation] = {}
        self._stalled = False
        self._ends: float | None = None  # when those that still run at shutdown are let down
        self._duration = 1.0  # of a request, smoothed

    async def __aenter__(self) -> Service:
        self._loop = asyncio.get_running_loop()
        self._watch = asyncio.create_task(self._look_at_clocks())
        self._worker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watch.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._worker.stop, self.settings.grace)

    @property
    def state(self) -> State:
        """ok, stalled while a step does not end, stopping from the first word of a shutdown on."""
        if self._ends is not None:
            return "stopping"
        return "stalled" if self._stalled or not self._worker.alive else "ok"

    @property
    def open_texts(self) -> int:
        """Texts that have been let in and are not yet delivered."""
        return sum(generation.texts for generation in self._generations)

    def open(self, texts: int) -> Generation:
        """A place for so many texts. Raises APIError: 429 if the queue is full, 400 if it could never have so much
        room, 503 if there is no service."""
        if self.state != "ok":
            reason = "shutting down" if self.state == "stopping" else "not well: the engine does not answer"
            raise APIError(503, f"the server is {reason}", type="server_error", headers={"retry-after": "10"})
        most = self.llm.engine.scheduler.max_batch + self.settings.queue
        if texts > most:
            raise APIError(400, f"n: {texts} texts were asked for; this server takes at most {most} at once", param="n")
        room = most - self.open_texts
        if texts > room:
            wait = str(min(max(math.ceil(self._duration), 1), 60))
            raise APIError(
                429,
                f"the queue has room for {max(room, 0)} texts; {texts} were asked for",
                type="rate_limit_error",
                code="queue_full",
                headers={"retry-after": wait},
            )
        generation = Generation(texts, self.settings.timeout)
        self._generations.add(generation)
        return generation

    async def prepare(self, work: Callable[[], list[Request]]) -> list[Request]:
        """Do what takes a while (templates, tokenizers) beside the event loop, one call at a time.

        On several threads, prompts of megabytes left hundreds of MiB behind in the allocator's arenas.
        """
        return await self._loop.run_in_executor(self._pool, work)

    def start(self, generation: Generation, requests: Sequence[Request]) -> None:
        """Have the requests of a generation written. Raises APIError if it has failed while its prompts were read."""
        if generation.failure:
            raise generation.failure
        generation.requests = requests
        for request in requests:
            self._owners[request.id] = generation
        self._worker.submit(requests)

    def close(self, generation: Generation) -> None:
        """Give back the place; what is still being written is cancelled within one step."""
        if generation not in self._generations:
            return
        self._generations.remove(generation)
        for request in generation.requests:
            del self._owners[request.id]
            if not generation.over(request):
                self.metrics.abandon(request)
                self._worker.cancel(request)
        self._duration += 0.2 * (time.perf_counter() - generation.arrived - self._duration)

    def drain(self) -> None:
        """A shutdown begins: nobody is let in any more, and who is in has the time of grace."""
        if self._ends is None:  # whoever asks again asks for no more time
            self._ends = time.perf_counter() + self.settings.grace

    def _emitted(self, emitted: list[Emitted]) -> None:
        self._hand_over(self._deliver, emitted)

    def _failed(self, error: Exception) -> None:
        self._hand_over(self._let_down, f"the engine failed: {type(error).__name__}: {error}")

    def _hand_over(self, function: Callable[..., None], *args: Any) -> None:
        """Call something on the event loop, from the worker's thread."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed, and nobody is left to be told
            log.debug("nobody is left to be told")

    def _deliver(self, emitted: list[Emitted]) -> None:
        now = time.perf_counter()
        for each in emitted:
            generation = self._owners.get(each.request.id)
            if generation is not None:  # else it was closed meanwhile
                generation.add(each)
                self.metrics.add(each, generation.arrived, now)

    def _let_down(self, reason: str, status: int = 500) -> None:
        """End all generations with an error."""
        for generation in tuple(self._generations):
            generation.fail(APIError(status, reason, type="server_error"))
            self.close(generation)

    async def _look_at_clocks(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            stall, now = self.settings.stall, time.perf_counter()
            stalled = self._worker.step_time > stall
            if stalled and not self._stalled:
                log.error("a step of the engine takes longer than %g s", stall)
                self._let_down(f"the engine has not finished a step for {stall:g} seconds", 503)
            self._stalled = stalled
            if self._ends is not None and now > self._ends:
                self._let_down("the server is shutting down", 503)
            for generation in tuple(self._generations):
                if now > generation.deadline:
                    reason = f"the request took longer than {self.settings.timeout:g} seconds"
                    generation.fail(APIError(504, reason, type="timeout_error"))
                    self.close(generation)
