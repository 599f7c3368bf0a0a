"""The engine on a thread of its own. Orders go in through a queue; what each step emits goes out in one call.

worker = Worker(engine, emitted=print, failed=print)
worker.start()
worker.submit(requests)
worker.stop()
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

from outrider.engine import Engine
from outrider.request import Emitted, Request

log = logging.getLogger(__name__)


class Worker:
    """Steps an engine as long as it has something to do; nobody else may touch it. Methods are for any thread.

    emitted  told of what a step emitted, on the worker's thread.
    failed   told that steps fail for good: all requests are cancelled; or that the thread is at its end.
    """

    def __init__(
        self, engine: Engine, *, emitted: Callable[[list[Emitted]], None], failed: Callable[[Exception], None]
    ) -> None:
        self._engine = engine
        self._emitted = emitted
        self._failed = failed
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="outrider-engine", daemon=True)
        self._step_began: float | None = None
        self._failures = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests that the engine's scheduler has checked."""
        for request in requests:
            self._orders.put(partial(self._engine.submit, request))

    def cancel(self, request: Request) -> None:
        """End a request before the next step; nothing happens to one that is over."""
        self._orders.put(partial(self._engine.cancel, request))

    def stop(self, timeout: float | None = None) -> None:
        """End the thread after its present step, and drop the requests that are left. Waits at most `timeout` s."""
        self._orders.put(None)
        self._thread.join(timeout)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def step_time(self) -> float:
        """Seconds since the present step began; 0 between steps."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    def _run(self) -> None:
        try:
            while self._obey():
                self._step()
            self._engine.drop_all()
        except Exception as error:
            log.critical("the engine's thread has died", exc_info=error)
            self._failed(error)

    def _obey(self) -> bool:
        """Carry out the orders that are there, or wait for one if there is nothing else to do; False: stop."""
        while self._engine.idle or not self._orders.empty():
            order = self._orders.get()
            if order is None:
                return False
            order()
        return True

    def _step(self) -> None:
        """One step. If it raises nothing was committed, and it is tried once more before everybody is let down."""
        self._step_began = time.monotonic()
        try:
            emitted = self._engine.step()
        except Exception as error:
            self._failures += 1
            log.error("a step failed, for the %s time", "first" if self._failures == 1 else "second", exc_info=error)
            if self._failures == 1:
                return
            self._engine.drop_all()  # before it is told: what comes then is not of this failure
            self._failed(error)
        else:
            if emitted:
                self._emitted(emitted)
        finally:
            self._step_began = None
        self._failures = 0
