"""When to try again what was of no use: after 1, 3, 7, then every 15 tokens of the text."""

from __future__ import annotations

from math import inf

LONGEST = 15
"""Tokens between two trials, at most."""


class Alarm:
    """due: the length of the text at which to try; where `on` is false, never. eager: its wait may still grow."""

    __slots__ = ("_wait", "due", "eager")

    def __init__(self, on: bool) -> None:
        self._wait = 0
        self.due: float = 0 if on else inf
        self.eager = on

    def set(self, length: int, *, useless: bool) -> None:
        """It was tried, and the text is this long now."""
        self._wait = min(2 * self._wait + 1, LONGEST) if useless else 0
        self.due = length + self._wait
        self.eager = self._wait < LONGEST
