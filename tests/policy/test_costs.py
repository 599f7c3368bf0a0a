"""Costs between and beyond what was measured, and the clock that measures them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from outrider.cache import KVCache
from outrider.models.base import KVShape
from outrider.policy import measure as measuring
from outrider.policy.costs import FREE, Costs
from outrider.policy.measure import measure
from outrider.types import Output, Rows

COSTS = Costs((1, 2, 4), (100, 1100), ((2.0, 2.2, 3.0), (4.0, 6.0, 10.0)))


def test_one_row_costs_one_row() -> None:
    assert [COSTS.v(1, context) for context in (0, 100, 600, 5000)] == [1, 1, 1, 1]


def test_linear_between_row_counts_and_beyond() -> None:
    assert [COSTS.v(n, 100) for n in (2, 3, 4, 6)] == pytest.approx([1.1, 1.3, 1.5, 1.9])


def test_rows_beyond_the_end_are_not_free_because_the_last_two_times_say_so() -> None:
    """Beside a prompt's rows, drafts would be taken to cost nothing."""
    costs = Costs((1, 9, 13), (0,), ((1.0, 2.2, 2.2),))
    assert costs.v(23) == pytest.approx(2.2 + 10 * 0.1)
    assert costs.added(256, 0, 4)[4] == pytest.approx(0.4)


def test_linear_between_contexts_and_the_same_beyond() -> None:
    assert COSTS.v(2, 600) == pytest.approx(4.1 / 3)
    assert (COSTS.v(2, 0), COSTS.v(2, 9000)) == pytest.approx((1.1, 1.5))


def test_added_is_what_more_rows_cost() -> None:
    assert COSTS.added(2, 100, 3) == pytest.approx((0, 0.2, 0.4, 0.6))
    assert FREE.added(1, 0, 3) == (0, 0, 0, 0)


class Clockwork:
    """A model that takes base + step x (rows - 1) + a share per token of context, on a clock that it winds itself."""

    vocabulary_size = 5
    kv_shape = KVShape(1, 1, 16)

    def __init__(self, context_length: int, hiccups: bool = False) -> None:
        self.context_length = context_length
        self.now = 0.0
        self._hiccups = hiccups
        self._passes = 0

    def forward(self, rows: Rows, cache: KVCache) -> Output:
        n = len(rows.tokens)
        assert rows.positions.tolist() == list(range(rows.positions[0], rows.positions[0] + n))
        assert rows.positions[-1] < self.context_length
        assert 0 <= rows.slots.min() <= rows.slots.max() < cache.positions
        assert len(set(rows.slots.tolist())) == n
        assert rows.tables.max() < cache.pool.size
        assert rows.tables.shape[1] == KVCache.blocks_for(int(rows.positions[-1]) + 1)
        self._passes += 1
        hiccup = 50.0 if self._hiccups and self._passes % 7 == 0 else 1.0
        self.now += (1.0 + 0.1 * (n - 1) + rows.positions[0] / 1000) * hiccup
        return Output(np.zeros((n, 5), np.float32))


@pytest.mark.parametrize("hiccups", [False, True])
def test_measuring_finds_what_passes_take(hiccups: bool) -> None:
    model = Clockwork(5000, hiccups)
    costs = measure(model, clock=lambda: model.now)
    assert costs.contexts == (128, 1024, 4096)
    assert [costs.v(n, 128) for n in (1, 2, 8, 16)] == pytest.approx(
        [1, 1 + 0.1 / 1.128, 1 + 0.7 / 1.128, 1 + 1.5 / 1.128]
    )
    assert costs.v(16, 4096) == pytest.approx(1 + 1.5 / 5.096)


@pytest.mark.parametrize("context_length", [2, 3, 16, 17, 200])
def test_a_short_context_is_measured_as_far_as_it_goes(context_length: int) -> None:
    model = Clockwork(context_length)
    costs = measure(model, clock=lambda: model.now)
    assert costs.rows[0] == 1
    assert costs.rows[-1] == min(context_length, 16)


def test_measuring_takes_a_bounded_time() -> None:
    fast, slow = Clockwork(100), Clockwork(100)
    measure(fast, clock=lambda: fast.now / 1e6)
    measure(slow, clock=lambda: slow.now)
    rounds = [(model._passes - len(measuring.ROWS)) / len(measuring.ROWS) for model in (fast, slow)]
    assert rounds == [3 * 11, 3 * 3]  # of three passes in a row


def test_chance_never_makes_more_rows_cheaper() -> None:
    assert measuring._ascending([1.0, 3.0, 2.0, 4.0]) == (1, 2.5, 2.5, 4)
    assert all(a <= b for a, b in pairwise(measuring._ascending([5, 4, 3, 2, 6, 1.0])))
