"""What to expect of a drafter at each depth before it is asked, learnt within one request.

What it says of its own tokens afterwards is calibrated by `Calibration` (native/weighing.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence

WEIGHT = 6.0
"""Outcomes that the expected acceptance at a depth counts for."""


class Acceptance:
    """Acceptance at each depth, for planning before there are estimates: what is expected, weighed with what was seen.

    expected  as `Drafter.expected`; it counts as much as `WEIGHT` outcomes at each depth.
    """

    __slots__ = ("_accepted", "_expected", "_reached")

    def __init__(self, expected: Sequence[float]) -> None:
        self._expected = list(expected)
        self._reached: list[int] = []
        self._accepted: list[int] = []

    def gains(self, most: int) -> list[float]:
        """The probability that a chain's token at each depth is reached and accepted."""
        gains, gain = [], 1.0
        for depth in range(most):
            expected = self._expected[min(depth, len(self._expected) - 1)]
            reached = self._reached[depth] if depth < len(self._reached) else 0
            accepted = self._accepted[depth] if depth < len(self._reached) else 0
            gain *= (WEIGHT * expected + accepted) / (WEIGHT + reached)
            gains.append(gain)
        return gains

    def learn(self, accepted: int, refused: bool) -> None:
        """So many tokens of a chain were accepted, and one more was refused, or there was none."""
        missing = accepted + refused - len(self._reached)
        self._reached += [0] * missing
        self._accepted += [0] * missing
        for depth in range(accepted + refused):
            self._reached[depth] += 1
            self._accepted[depth] += depth < accepted
