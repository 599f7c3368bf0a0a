"""Covering arrays: each two values meet, in few combinations."""

from __future__ import annotations

from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from outrider.certify.covering import every, pairwise


def met(rows):
    """All pairs of (factor, value) that meet."""
    return {pair for row in rows for pair in combinations(sorted(row.items()), 2)}


factors = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(
    lambda sizes: {f"f{i}": range(size) for i, size in enumerate(sizes)}
)


@given(factors)
def test_every_two_values_meet(factors):
    rows = list(pairwise(factors))
    assert met(rows) == met(every(factors))
    assert len({tuple(row.items()) for row in rows}) == len(rows)
    assert len(rows) <= len(list(every(factors)))


def test_the_arrays_are_small():
    """No array can be smaller than the product of the two largest factors; a good one is hardly larger."""
    factors = {"drafter": range(7), "k": range(5), "shape": range(2), "batch": range(2), "memory": range(3)}
    assert 35 <= len(list(pairwise(factors))) <= 38


def test_no_combination_is_superfluous_for_two_factors():
    """The control of the oracle: without any one row, a pair is missing."""
    factors = {"a": range(3), "b": range(4)}
    rows = list(pairwise(factors))
    assert len(rows) == 12
    for left_out in range(len(rows)):
        assert met(rows[:left_out] + rows[left_out + 1 :]) != met(every(factors))


def test_the_same_factors_give_the_same_array():
    factors = {"a": ["x", "y"], "b": [1, 2, 3], "c": [True, False]}
    assert list(pairwise(factors)) == list(pairwise(factors))


def test_every_combination():
    factors = {"a": [1, 2], "b": "xy"}
    assert [tuple(row.values()) for row in every(factors)] == list(product([1, 2], "xy"))
