"""Rows go to the drafted tokens that gain most, as many as pay: the best of all ways to share them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.kernels._drafting import allocate

Allocate = Callable[[Sequence[Sequence[float]], Sequence[float], Sequence[float], float], tuple[list[int], list[float]]]

PLENTY = (100.0,) * 8


def value(counts: Sequence[int], gains: Sequence[Sequence[float]], added: Sequence[float], worth: float) -> float:
    return sum(sum(each[:count]) for each, count in zip(gains, counts, strict=True)) - worth * added[sum(counts)]


def best(gains: Sequence[Sequence[float]], added: Sequence[float], worth: float) -> float:
    """The oracle: try everything."""
    return max(value(counts, gains, added, worth) for counts in product(*(range(len(each) + 1) for each in gains)))


chains = st.lists(st.floats(0.01, 0.99), max_size=4).map(lambda each: sorted(each, reverse=True))
costs = st.lists(st.floats(0, 0.6), min_size=12, max_size=12)
batches = st.lists(chains, min_size=1, max_size=3)
worths = st.floats(0.1, 8)


def is_best(allocate: Allocate, gains: list[list[float]], steps: list[float], worth: float) -> bool:
    added = [sum(steps[:j]) for j in range(13)]
    counts, times = allocate(gains, PLENTY, added, worth)
    assert sum(times) == pytest.approx(added[sum(counts)])
    return value(counts, gains, added, worth) >= best(gains, added, worth) - 1e-9


@given(batches, costs, worths)
def test_no_other_way_to_share_rows_brings_more(gains: list[list[float]], steps: list[float], worth: float) -> None:
    assert is_best(allocate, gains, steps, worth)


def test_stopping_at_the_first_row_that_does_not_pay_would_be_seen() -> None:
    """The control: the next row is dear, those after it are free, as when a tile of rows is full."""

    def hasty(
        gains: Sequence[Sequence[float]], rooms: Sequence[float], added: Sequence[float], worth: float
    ) -> tuple[list[int], list[float]]:
        count = 0
        while count < len(gains[0]) and gains[0][count] > worth * (added[count + 1] - added[count]):
            count += 1
        return [count], [added[count]]

    world = ([[0.4, 0.4, 0.4]], [0.5] + [0.0] * 11, 1.0)
    assert not is_best(hasty, *world)
    assert is_best(allocate, *world)


def test_rows_go_where_they_gain_most() -> None:
    assert allocate([(0.9, 0.3), (0.5, 0.4)], PLENTY, (0, 0.1, 0.2, 0.3, 1.3), 1)[0] == [1, 2]


def test_nothing_pays_where_rows_are_dear() -> None:
    assert allocate([(0.9, 0.8), (0.7,)], PLENTY, (0, 1, 2, 3), 1)[0] == [0, 0]


def test_the_faster_texts_are_written_the_dearer_time_is() -> None:
    assert [allocate([(0.9, 0.7, 0.5)], PLENTY, (0, 0.2, 0.4, 0.6), worth)[0] for worth in (1, 3, 4, 6)] == [
        [3],
        [2],
        [1],
        [0],
    ]


def test_nobody_gets_more_than_there_is_room_for() -> None:
    added = (0, 0.1, 0.2, 0.3, 0.4)
    assert allocate([(0.9, 0.8), (0.7, 0.6)], (0.15, 1), added, 1)[0] == [1, 2]
    assert allocate([(0.9, 0.8)], (-0.1,), (0, 0, 0), 1)[0] == [0], "nor anything with less than nothing"
    assert allocate([(0.9, 0.8)], (0.0,), (0, 0, 0), 1)[0] == [2], "what costs nothing is always possible"


def test_no_more_rows_than_the_costs_tell_of() -> None:
    assert allocate([(0.9, 0.8), (0.7,)], PLENTY, (0, 0), 1)[0] == [1, 0]


def test_equal_gains_go_to_the_older_request() -> None:
    assert allocate([(0.5,), (0.5,)], PLENTY, (0, 0.1, 0.9), 1)[0] == [1, 0]
