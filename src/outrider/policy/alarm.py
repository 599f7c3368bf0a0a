"""When to try again what was of no use: after 1, 3, 7, then every 15 tokens. It depends on nothing but the text."""

from __future__ import annotations

from math import inf

_LONGEST = 15  # tokens


class Alarm:
    """due: the length of the text at which to try; where `on` is false, never."""

    __slots__ = ("_wait", "due")

    def __init__(self, on: bool) -> None:
        self._wait = 0
        self.due: float = 0 if on else inf

    def set(self, length: int, *, useless: bool) -> None:
        """It was tried, and the text is this long now."""
        self._wait = min(2 * self._wait + 1, _LONGEST) if useless else 0
        self.due = length + self._wait
