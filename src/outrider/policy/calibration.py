"""How far a drafter's acceptance estimates can be believed, learnt within one request.

    calibration = Calibration()
    calibration.believed(0.6)          # 0.6: nothing is known yet
    calibration.learn([(0.6, False)])
    calibration.believed(0.6)          # less

Logistic recalibration with a free intercept (Cox 1958, "Two further applications of a model for binary regression"):
the odds of every estimate are multiplied by one factor, whose logarithm has a normal prior and follows the outcomes by
one Newton step for each proposal. It keeps the drafter's own ranking, and learns from a handful of outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

PRECISION = 2.0
"""Of the prior: estimates are off by a factor of two in their odds, one way or the other, in two of three texts."""

MEMORY = 12.0
"""The precision grows no further, so that the factor follows a text that changes its nature."""

WEIGHT = 6.0
"""Outcomes that the expected acceptance at a depth counts for."""

_LEAST = 0.01  # no estimate is believed to be certain
_FARTHEST = 4.0  # of the factor's logarithm from 0


class Calibration:
    """One drafter's, within one request. odds: the factor."""

    __slots__ = ("_log", "_precision", "odds")

    def __init__(self) -> None:
        self._log = 0.0
        self._precision = PRECISION
        self.odds = 1.0

    def believed(self, estimate: float) -> float:
        """The calibrated probability."""
        p = min(max(_LEAST, estimate), 1 - _LEAST)  # in this order, what is no number becomes the least
        odds = self.odds * p
        return odds / (1 - p + odds)

    def gains(self, estimates: Sequence[float], parents: Sequence[int]) -> list[float]:
        """Per node of a proposal, the probability that it is reached and accepted."""
        gains: list[float] = []
        for estimate, parent in zip(estimates, parents, strict=True):
            p = self.believed(estimate)
            gains.append(p * gains[parent] if parent >= 0 else p)
        return gains

    def learn(self, outcomes: Sequence[tuple[float, bool]]) -> None:
        """Tokens with these estimates were reached, and each was accepted or not."""
        surprise = information = 0.0
        for estimate, accepted in outcomes:
            p = self.believed(estimate)
            surprise += accepted - p
            information += p * (1 - p)
        self._precision = min(self._precision + information, MEMORY)
        self._log = min(max(self._log + surprise / self._precision, -_FARTHEST), _FARTHEST)
        self.odds = exp(self._log)


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
