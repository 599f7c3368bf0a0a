"""Keyed noise is good noise, and a pure function of its key."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.randomness import Noise, Purpose
from outrider.types import DoubleArray
from tests.verify.laws import fits

N = 50_000


def uniform(numbers: DoubleArray) -> bool:
    """Kolmogorov-Smirnov and chi-square (100 cells) against the uniform law, at about one in ten thousand."""
    ordered = np.sort(numbers)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    distance = max(np.abs(ordered - steps[1:]).max(), np.abs(ordered - steps[:-1]).max())
    cells = np.histogram(numbers, bins=100, range=(0, 1))[0]
    return bool(distance * math.sqrt(len(numbers)) < 2.2) and fits(cells, [1] * 100)


def unrelated(first: DoubleArray, second: DoubleArray) -> bool:
    """No linear correlation, and no cell of a 10 x 10 grid favoured."""
    grid = np.histogram2d(first, second, bins=10, range=((0, 1), (0, 1)))[0].ravel()
    return abs(np.corrcoef(first, second)[0, 1]) * math.sqrt(len(first)) < 4 and fits(grid, [1] * 100)


IDS = np.arange(N)
BY_FIELD = {
    "ids": Noise(1).uniforms(Purpose.TARGET, IDS),
    "positions": np.array([Noise(1, 0, i).uniform(Purpose.ACCEPT) for i in range(N)]),
    "seeds": np.array([Noise(i).uniform(Purpose.ACCEPT) for i in range(N)]),
    "choices": np.array([Noise(1, i).uniform(Purpose.ACCEPT) for i in range(N)]),
    "committed": np.array([Noise(1, 0, 0, i).uniform(Purpose.ACCEPT) for i in range(N)]),
    "siblings": np.array([Noise(1).uniform(Purpose.ACCEPT, i) for i in range(N)]),
    "ids of other seeds": np.array([Noise(i).uniforms(Purpose.TARGET, IDS[7:8])[0] for i in range(N)]),
}


@pytest.mark.parametrize("field", BY_FIELD)
def test_consecutive_values_of_every_field_give_independent_uniform_numbers(field: str) -> None:
    numbers = BY_FIELD[field]
    assert uniform(numbers)
    assert len(np.unique(numbers)) == N
    for lag in (1, 2, 3, 64):
        assert unrelated(numbers[:-lag], numbers[lag:])


def test_the_oracles_convict_poor_generators() -> None:
    assert not uniform(BY_FIELD["ids"] ** 1.05)
    counter = np.modf(IDS * 0.6180339887498949)[0]  # without the finaliser each number follows from the last
    assert not unrelated(counter[:-1], counter[1:])
    assert not unrelated(BY_FIELD["ids"], BY_FIELD["ids"])


@pytest.mark.parametrize(
    "other",
    [
        Noise(1).uniforms(Purpose.DRAFT, IDS),
        Noise(2).uniforms(Purpose.TARGET, IDS),
        Noise(1, 1).uniforms(Purpose.TARGET, IDS),
        Noise(1, 0, 1).uniforms(Purpose.TARGET, IDS),
    ],
    ids=["purpose", "seed", "choice", "position"],
)
def test_another_key_gives_unrelated_numbers(other: DoubleArray) -> None:
    assert unrelated(BY_FIELD["ids"], other)


def test_purposes_are_unrelated_over_positions() -> None:
    drawn = {p: np.array([Noise(1, 0, i).uniform(p) for i in range(20_000)]) for p in Purpose}
    for first in Purpose:
        for second in Purpose:
            assert unrelated(drawn[first], drawn[second]) == (first != second)


def test_exponentials_have_their_law() -> None:
    exponentials = Noise(3, 0, 8).exponentials(Purpose.TARGET, IDS)
    assert uniform(np.exp(-exponentials))
    assert abs(exponentials.mean() - 1) < 0.02
    assert (exponentials > 0).all()
    assert np.isfinite(exponentials).all()


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=40), st.integers(-(2**63), 2**63 - 1))
def test_the_number_of_an_id_does_not_depend_on_the_other_ids(ids: list[int], seed: int) -> None:
    noise = Noise(seed, 0, 5)
    together = noise.exponentials(Purpose.TARGET, np.array(ids))
    assert together.tolist() == [noise.exponentials(Purpose.TARGET, np.array([i]))[0] for i in ids]


def test_noise_per_token_ignores_when_it_was_committed_but_single_draws_do_not() -> None:
    early, late = Noise(1, 0, 5, 2), Noise(1, 0, 5, 4)
    assert (early.uniforms(Purpose.TARGET, IDS) == late.uniforms(Purpose.TARGET, IDS)).all()
    assert early.uniform(Purpose.ACCEPT) != late.uniform(Purpose.ACCEPT)


def test_ahead_moves_the_position_and_nothing_else() -> None:
    assert Noise(1, 2, 5, 4).ahead(3) == Noise(1, 2, 8, 4)
    assert Noise(1, 2, 5, 4).ahead(0) == Noise(1, 2, 5, 4)


def test_the_extreme_numbers_stay_inside_the_open_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    for state in (0, 2**64 - 1):
        monkeypatch.setattr(Noise, "_state", lambda *key, state=state: state)
        assert 0 < Noise(0).uniform(Purpose.ACCEPT) < 1


def test_the_numbers_are_the_same_for_ever() -> None:
    """A seed is a promise across versions and machines; these are the first numbers it was given with."""
    assert Noise(42, 1, 7, 3).uniform(Purpose.RESIDUAL, 2) == 0.867183189074851
    numbers = Noise(42, 1, 7).uniforms(Purpose.TARGET, np.array([0, 1, 49151]))
    assert numbers.tolist() == [0.777957654007369, 0.15837223663859767, 0.6981808827235446]
