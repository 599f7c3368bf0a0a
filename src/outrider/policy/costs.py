"""What a pass of the target costs by its number of rows, in one-row passes: v(n) of docs/architecture.md.

costs = measure(model)
costs.v(5, context=1000)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured times of passes.

    rows      row counts, ascending from 1.
    contexts  committed tokens before the pass, ascending.
    seconds   [contexts][rows].
    """

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    @classmethod
    def mean(cls, several: Sequence[Costs]) -> Costs:
        """Of several measurements of one model: what passes took on average in all that time."""
        columns = zip(*[costs.seconds for costs in several], strict=True)
        seconds = tuple(tuple(fmean(times) for times in zip(*column, strict=True)) for column in columns)
        return cls(several[0].rows, several[0].contexts, seconds)

    def v(self, rows: float, context: int = 0) -> float:
        """Time of a pass of so many rows over that of one row, at that context length.

        Linear between what was measured; past it, contexts stay, and each row costs what one did at the end, or on
        average, whichever is more: of two noisy times at the end, one may say that rows are free.
        """
        place = self._near(context)
        times = [_linear(self.contexts, column, place) for column in zip(*self.seconds, strict=True)]
        beyond = rows - self.rows[-1]
        if beyond > 0 and len(times) > 1:
            last = (times[-1] - times[-2]) / (self.rows[-1] - self.rows[-2])
            mean = (times[-1] - times[0]) / (self.rows[-1] - self.rows[0])
            return (times[-1] + beyond * max(last, mean)) / times[0]
        return _linear(self.rows, times, rows) / times[0]

    def plain(self, context: int) -> float:
        """Seconds of a pass of one row."""
        return _linear(self.contexts, [column[0] for column in self.seconds], self._near(context))

    def added(self, base: int, context: int, most: int) -> tuple[float, ...]:
        """added[j], j = 0 .. most: what j more rows add to a pass of `base` rows, in one-row passes."""
        plain = self.v(base, context)
        return tuple(self.v(base + j, context) - plain for j in range(most + 1))

    def _near(self, context: int) -> int:
        """The nearest context length among those that were measured, or between them."""
        return min(max(context, self.contexts[0]), self.contexts[-1])


FREE = Costs((1, 2), (0,), ((1.0, 1.0),))
"""Rows cost nothing."""


def _linear(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Piecewise linear through the points, the last piece going on; ys[0] where there is one point."""
    if len(xs) == 1:
        return ys[0]
    i = min(max(bisect_right(xs, x), 1), len(xs) - 1)
    return ys[i - 1] + (ys[i] - ys[i - 1]) * (x - xs[i - 1]) / (xs[i] - xs[i - 1])
