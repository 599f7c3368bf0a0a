"""Costs as they are now: those that were measured, corrected where the running figures drift away from them.

Corrections go in steps, and only after times that agree: on a machine that stays as it is, the same request takes the
same steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from math import inf, log2

from outrider.drafters.base import Drafter
from outrider.policy.costs import Costs

_DRAFTING = 5e-5  # seconds of Python that a step takes more where it drafts, with caches that a pass has just emptied
_AGREE = 4  # times in a row on one side that double the step of a median, up to eight times
_AT_ONCE = 32  # steps
_OCTAVE = 0.02  # octaves that one time moves the median of a ratio
_ROW = 0.001  # one-row passes that a drafted row moves what each adds more, or less, than was measured
_MANY = 4  # rows, more of which move it no further
_LEAST = 0.125  # of what rows added together when they were measured, what they add at least
_SPEED = 4.0  # octaves that the whole machine may get slower or faster by
_KEPT = 1024  # sums that are not added up again


class Median:
    """The median of what is seen, whatever the outliers. held: what it was about when it last moved far.

    step         how far one number moves it, and up to eight times that where many in a row lie on one side.
    noise        how far it may move without meaning anything.
    least, most  its bounds.
    """

    __slots__ = ("_above", "_least", "_most", "_noise", "_row", "_step", "held", "value")

    def __init__(self, step: float, noise: float, least: float, most: float) -> None:
        self._step, self._noise, self._least, self._most = step, noise, least, most
        self.value = self.held = 0.0
        self._above, self._row = False, 0

    def see(self, number: float, weight: int = 1) -> None:
        """One more, which moves it by `weight` steps."""
        above = number > self.value
        self._row = self._row + 1 if above == self._above else 0
        self._above = above
        step = weight * self._step * 2 ** min(self._row // _AGREE, 3)
        self.value = min(max(self.value + (step if above else -step), self._least), self._most)
        if abs(self.value - self.held) > self._noise:
            grid = 1.25 * self._noise
            self.held = round(self.value / grid) * grid


def a_ratio(least: float = -0.5, most: float = 2.0) -> Median:
    """Of a ratio of what is seen to what was measured, in octaves; a fifth of one is noise."""
    return Median(_OCTAVE, 10 * _OCTAVE, least, most)


def a_slope(costs: Sequence[float], rows: Sequence[int]) -> Median:
    """Of what each row adds beyond what was measured, in one-row passes; 0.04 is noise. A whole pass is the most."""
    steepest = max([0.0, *[(costs[i] / costs[0] - 1) / (rows[i] - 1) for i in range(1, len(rows))]])
    return Median(_ROW, 40 * _ROW, -steepest, 1.0)


class Prices:
    """What rows and drafted tokens cost, in one-row passes.

    Times of drafters are taken around their calls; those of steps from the end of the decision to the first
    observation, where a step has none but decoding requests.
    """

    def __init__(self, costs: Costs, drafters: Sequence[Drafter], clock: Callable[[], float] | None) -> None:
        """clock: None for no corrections."""
        self._costs = costs
        self._clock = clock
        self._corrected = lru_cache(_KEPT)(self._correct)
        self._drafts: dict[tuple[int, int, int, float], Sequence[float]] = {}  # each step asks: faster than lru_cache
        self._drafting = _DRAFTING / costs.plain(0) if clock else 0.0
        self._plain = a_ratio(-_SPEED, _SPEED)
        self._rows = [a_slope(seconds, costs.rows) for seconds in costs.seconds]
        self._drafters = {drafter: a_ratio() for drafter in drafters if drafter.cost}
        self._step: tuple[float, int, int, int] | None = None
        self._times: list[tuple[float, tuple[float, int, int, int]]] = []

    def added(self, base: int, context: int, most: int) -> Sequence[float]:
        """As `Costs.added`, corrected."""
        return self._corrected(base, context, most, self._slope(context).held)

    def drafts(self, base: int, context: int, most: int) -> Sequence[float]:
        """What so many drafted tokens add to a step: their rows, and what it takes to draft at all."""
        key = base, context, most, self._slope(context).held
        found = self._drafts.get(key)
        if found is None:
            if len(self._drafts) == _KEPT:
                self._drafts.clear()
            found = self._drafts[key] = self._with_drafting(*key)
        return found

    def token(self, drafter: Drafter) -> float:
        """Of a drafted token."""
        median = self._drafters.get(drafter)
        return drafter.cost * float(2**median.held) if median else 0.0

    def now(self) -> float:
        """The time."""
        return self._clock() if self._clock else 0.0

    def asked(self, drafter: Drafter, start: float, tokens: int, context: int) -> None:
        """A drafter that is not free was asked at `start`, and has drafted so many tokens, of one request."""
        if self._clock and tokens and drafter in self._drafters:
            plain = self._costs.plain(context) * 2**self._plain.value
            self._drafters[drafter].see(_octaves((self._clock() - start) / (tokens * drafter.cost * plain)))

    def step_begins(self, requests: int, rows: int, drafted: int, context: int) -> None:
        """The target is going to make a pass of so many rows and as many drafts."""
        self._step = (self._clock(), rows, drafted, context) if self._clock and rows == requests else None

    def step_ends(self) -> None:
        """It has made it; whoever calls again does no harm. Times are looked at many at once, which takes less time."""
        if self._step is not None and self._clock is not None:
            self._times.append((self._clock(), self._step))
            self._step = None
            if len(self._times) == _AT_ONCE:
                for end, step in self._times:
                    self._see(end, *step)
                self._times.clear()

    def _see(self, end: float, start: float, rows: int, drafted: int, context: int) -> None:
        passes, plain = (end - start) / self._costs.plain(context), self._costs.v(rows, context)
        if not drafted:
            self._plain.see(_octaves(passes / plain))
            return
        more = passes / 2**self._plain.value - plain - self._costs.added(rows, context, drafted)[-1]
        self._slope(context).see(more / drafted, min(drafted, _MANY))

    def _slope(self, context: int) -> Median:
        """That of the nearest context length among those that were measured: each was measured by itself."""
        contexts = self._costs.contexts
        above = bisect_left(contexts, context)
        if above in (0, len(contexts)):
            return self._rows[max(above - 1, 0)]
        return self._rows[above - (context - contexts[above - 1] < contexts[above] - context)]

    def _correct(self, base: int, context: int, most: int, slope: float) -> Sequence[float]:
        """By a time for each row. On one machine v(2) and v(8) were 1.01 and 1.53, and 1.17 and 2.37 in another minute:
        that is about as much more for each row, where a factor on 0.01 would be noise."""
        measured = self._costs.added(base, context, most)
        if slope == 0:
            return measured
        corrected = [max(time + slope * rows, _LEAST * time) for rows, time in enumerate(measured)]
        return tuple(accumulate(corrected, max))  # no row takes time off

    def _with_drafting(self, base: int, context: int, most: int, slope: float) -> Sequence[float]:
        return (0.0, *[time + self._drafting for time in self._corrected(base, context, most, slope)[1:]])


def _octaves(factor: float) -> float:
    return log2(factor) if factor > 0 else -inf
