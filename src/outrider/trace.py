"""Where the time of each step goes, in Chrome's trace format, for chrome://tracing or ui.perfetto.dev.

with traced(llm.engine, Path("trace.json")):
    llm.generate(...)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from outrider.engine import Engine

Told = Callable[[tuple[Any, ...], Any], dict[str, int]]


@contextmanager
def traced(engine: Engine, path: Path) -> Iterator[None]:
    """Write what the engine does meanwhile to `path`: an event for each step, and for each of its parts.

    The parts are wrapped from outside, and unwrapped at the end: an engine without a trace knows nothing of this.

    Raises OSError if the file cannot be written.
    """
    with path.open("w", encoding="utf-8") as file:
        trace = _Trace(file)
        parts: tuple[tuple[object, str, str, Told], ...] = (
            (engine.scheduler, "schedule", "schedule", lambda _, batch: {"requests": len(batch)}),
            (engine.drafter, "propose", "draft", lambda _, proposals: {"drafted": sum(map(len, proposals))}),
            (engine.cache, "reserve", "lay out rows", lambda _, rows: {"rows": len(rows.tokens)}),
            (engine.target, "forward", "forward", lambda given, _: {"rows": len(given[0].tokens)}),
            (engine.scheduler, "advance", "commit", lambda _, commits: {"accepted": sum(len(c.path) for c in commits)}),
            (engine.drafter, "observe", "observe", lambda *_: {}),
            (engine, "step", "step", lambda _, emitted: {"emitted": len(emitted)}),
        )
        for part, method, name, told in parts:
            setattr(part, method, trace.timed(getattr(part, method), name, told))
        try:
            yield
        finally:
            for part, method, *_ in parts:
                delattr(part, method)
            trace.end()


class _Trace:
    """Writes events as they end. Verification is no object's method: it is what lies between pass and commit."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._start = time.perf_counter()
        self._passed: float | None = None
        self._between = "[\n"

    def timed(self, function: Callable[..., Any], name: str, told: Told) -> Callable[..., Any]:
        """The function, with an event for each call that returns."""

        def call(*given: Any) -> Any:
            begun = time.perf_counter()
            if name == "commit" and self._passed is not None:
                self._event("verify", self._passed, begun, {})
            result = function(*given)
            ended = time.perf_counter()
            self._passed = ended if name == "forward" else None
            self._event(name, begun, ended, told(given, result))
            return result

        return call

    def end(self) -> None:
        """Nothing comes after this."""
        self._file.write("[\n]\n" if self._between == "[\n" else "\n]\n")

    def _event(self, name: str, begun: float, ended: float, args: dict[str, int]) -> None:
        event = {
            "name": name,
            "ph": "X",  # a complete event: times in microseconds
            "ts": round((begun - self._start) * 1e6, 1),
            "dur": round((ended - begun) * 1e6, 1),
            "pid": 1,
            "tid": 1,
            "args": args,
        }
        self._file.write(self._between + json.dumps(event))
        self._between = ",\n"
