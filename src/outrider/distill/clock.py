"""How long each stage of a distillation has taken, over all sittings; on disk, so that a budget holds for them all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

_EVERY = 5.0  # seconds between two writes


class Clock:
    """seconds: of each stage so far."""

    def __init__(self, path: Path) -> None:
        self.seconds: dict[str, float] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        self._path = path
        self._written = 0.0

    def spent(self, stage: str) -> float:
        """Seconds of that stage so far."""
        return self.seconds.get(stage, 0.0)

    def timing(self, stage: str, work: Iterable[T]) -> Iterator[T]:
        """The same items; the time until each, and what the caller does with it, is the stage's."""
        last = monotonic()
        try:
            for item in work:
                yield item
                last = self._add(stage, last)
        finally:
            self._add(stage, last)
            self._write()

    def _add(self, stage: str, since: float) -> float:
        now = monotonic()
        self.seconds[stage] = self.spent(stage) + now - since
        if now - self._written > _EVERY:
            self._write()
        return now

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self.seconds), "utf-8")
        os.replace(new, self._path)
        self._written = monotonic()
