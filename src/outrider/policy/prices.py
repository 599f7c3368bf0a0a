"""Costs as they are now: those that were measured, corrected where the running figures drift away from them.

Corrections go in steps of a quarter octave, and only after steps that agree: on a machine that stays as it is, the same
request takes the same steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache

from outrider.drafters.base import Drafter
from outrider.policy.costs import Costs

_DRAFTING = 5e-5  # seconds of Python that a step takes more where it drafts, with caches that a pass has just emptied
_RATE = 0.02  # octaves that one time moves a median, and up to eight times that where many in a row lie on one side
_AGREE = 4  # times in a row that double it
_BAND = 0.2  # octaves by which it must have moved
_DOWN, _UP = -0.5, 2.0  # octaves that it moves at most: too cheap is worse than too dear
_AT_ONCE = 32  # steps
_SPEED = 4.0  # octaves that the whole machine may get slower or faster by
_EVEN = 0.5  # of what rows add on average, the least that each adds, once there is something to correct
_KEPT = 1024  # sums that are not added up again
_FEW = 0.03  # one-row passes: what adds less is lost in noise


class Drift:
    """The ratio of what is seen to what was measured: its median, whatever the outliers. factor: the median, held.

    least, most  bounds, in octaves.
    """

    __slots__ = ("_above", "_held", "_least", "_most", "_octaves", "_row", "factor")

    def __init__(self, least: float = _DOWN, most: float = _UP) -> None:
        self._least, self._most = least, most
        self._octaves = self._held = 0.0
        self._above, self._row = False, 0
        self.factor = 1.0

    def see(self, ratio: float) -> None:
        """One more."""
        above = ratio > 2**self._octaves
        self._row = self._row + 1 if above == self._above else 0
        self._above = above
        step = _RATE * 2 ** min(self._row // _AGREE, 3)
        self._octaves = min(max(self._octaves + (step if above else -step), self._least), self._most)
        if abs(self._octaves - self._held) > _BAND:
            self._held = round(4 * self._octaves) / 4
            self.factor = 2**self._held

    @property
    def median(self) -> float:
        """As it is."""
        return float(2**self._octaves)


class Prices:
    """What rows and drafted tokens cost, in one-row passes.

    Times of drafters are taken around their calls; those of steps from the end of the decision to the first
    observation, where a step has none but decoding requests.
    """

    def __init__(self, costs: Costs, drafters: Sequence[Drafter], clock: Callable[[], float] | None) -> None:
        """clock: None for no corrections."""
        self._costs = costs
        self._clock = clock
        self._measured = lru_cache(_KEPT)(self._added)
        self._corrected = lru_cache(_KEPT)(self._correct)
        self._drafts: dict[tuple[int, int, int, float], Sequence[float]] = {}  # each step asks: faster than lru_cache
        self._drafting = _DRAFTING / costs.plain(0) if clock else 0.0
        self._plain = Drift(-_SPEED, _SPEED)
        self._rows = [Drift() for _ in costs.contexts]
        self._drafters = {drafter: Drift() for drafter in drafters if drafter.cost}
        self._step: tuple[float, int, int, int] | None = None
        self._times: list[tuple[float, tuple[float, int, int, int]]] = []

    def added(self, base: int, context: int, most: int) -> Sequence[float]:
        """As `Costs.added`, corrected."""
        return self._corrected(base, context, most, self._drift(context).factor)

    def drafts(self, base: int, context: int, most: int) -> Sequence[float]:
        """What so many drafted tokens add to a step: their rows, and what it takes to draft at all."""
        key = base, context, most, self._drift(context).factor
        found = self._drafts.get(key)
        if found is None:
            if len(self._drafts) == _KEPT:
                self._drafts.clear()
            found = self._drafts[key] = self._with_drafting(*key)
        return found

    def token(self, drafter: Drafter) -> float:
        """Of a drafted token."""
        drift = self._drafters.get(drafter)
        return drafter.cost * drift.factor if drift else 0.0

    def now(self) -> float:
        """The time."""
        return self._clock() if self._clock else 0.0

    def asked(self, drafter: Drafter, start: float, tokens: int, context: int) -> None:
        """A drafter that is not free was asked at `start`, and has drafted so many tokens, of one request."""
        if self._clock and tokens and drafter in self._drafters:
            plain = self._costs.plain(context) * self._plain.median
            self._drafters[drafter].see((self._clock() - start) / (tokens * drafter.cost * plain))

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
        passes = (end - start) / self._costs.plain(context)
        if not drafted:
            self._plain.see(passes / self._costs.v(rows, context))
            return
        more = self._measured(rows, context, drafted)[-1]
        if more >= _FEW:
            seen = passes / self._plain.median - self._costs.v(rows, context)
            self._drift(context).see(max(seen, 1e-3) / more)

    def _drift(self, context: int) -> Drift:
        """That of the nearest context length among those that were measured: each was measured by itself."""
        contexts = self._costs.contexts
        above = bisect_left(contexts, context)
        if above in (0, len(contexts)):
            return self._rows[max(above - 1, 0)]
        return self._rows[above - (context - contexts[above - 1] < contexts[above] - context)]

    def _added(self, base: int, context: int, most: int) -> Sequence[float]:
        """What was measured, but where it says that the first rows add next to nothing: a factor on nothing corrects
        nothing."""
        measured = self._costs.added(base, context, most)
        last = self._costs.rows[-1]
        even = _EVEN * (self._costs.v(last, context) - 1) / max(last - 1, 1)
        return tuple([max(time, even * rows) for rows, time in enumerate(measured)])

    def _correct(self, base: int, context: int, most: int, factor: float) -> Sequence[float]:
        if factor == 1:
            return self._costs.added(base, context, most)
        return tuple([factor * time for time in self._measured(base, context, most)])

    def _with_drafting(self, base: int, context: int, most: int, factor: float) -> Sequence[float]:
        return (0.0, *[time + self._drafting for time in self._corrected(base, context, most, factor)[1:]])
