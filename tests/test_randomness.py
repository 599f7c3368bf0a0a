"""Keyed noise is good noise, and a pure function of its key."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.randomness import BLOCK, Noise, Purpose
from outrider.types import DoubleArray, IntArray
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


IDS = np.arange(N, dtype=np.int32)


def of_ids(noise: Noise, purpose: Purpose = Purpose.TARGET, ids: IntArray = IDS) -> DoubleArray:
    """The noise of token ids, as numbers that should be uniform."""
    return np.exp(-noise.exponentials(purpose, ids))


BY_FIELD = {
    "ids": of_ids(Noise(1)),
    "positions": np.array([Noise(1, 0, i).uniform(Purpose.ACCEPT) for i in range(N)]),
    "seeds": np.array([Noise(i).uniform(Purpose.ACCEPT) for i in range(N)]),
    "choices": np.array([Noise(1, i).uniform(Purpose.ACCEPT) for i in range(N)]),
    "committed": np.array([Noise(1, 0, 0, i).uniform(Purpose.ACCEPT) for i in range(N)]),
    "siblings": np.array([Noise(1).uniform(Purpose.ACCEPT, i) for i in range(N)]),
    "ids of other seeds": np.array([of_ids(Noise(i), ids=IDS[7:8])[0] for i in range(N)]),
}


@pytest.mark.parametrize("field", BY_FIELD)
def test_consecutive_values_of_every_field_give_independent_uniform_numbers(field: str) -> None:
    numbers = BY_FIELD[field]
    assert uniform(numbers)
    assert len(np.unique(numbers)) == N
    for lag in (1, 2, 3, 31, 32, 64):
        assert unrelated(numbers[:-lag], numbers[lag:])


def test_the_oracles_convict_poor_generators() -> None:
    assert not uniform(BY_FIELD["ids"] ** 1.05)
    counter = np.modf(IDS * 0.6180339887498949)[0]  # without the finaliser each number follows from the last
    assert not unrelated(counter[:-1], counter[1:])
    assert not unrelated(BY_FIELD["ids"], BY_FIELD["ids"])


@pytest.mark.parametrize(
    "other",
    [
        of_ids(Noise(1), Purpose.DRAFT),
        of_ids(Noise(1), Purpose.UNDRAFTED),
        of_ids(Noise(2)),
        of_ids(Noise(1, 1)),
        of_ids(Noise(1, 0, 1)),
    ],
    ids=["purpose", "another purpose", "seed", "choice", "position"],
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


def test_the_noise_inside_a_block_is_independent_and_everyone_is_first_equally_often() -> None:
    blocks = Noise(9).exponentials(Purpose.TARGET, np.arange(20_000 * BLOCK)).reshape(-1, BLOCK)
    for other in (1, 2, 17, 31):
        assert unrelated(np.exp(-blocks[:, 0]), np.exp(-blocks[:, other]))
    assert uniform(np.exp(-blocks.min(axis=1) * BLOCK))
    assert fits(np.bincount(blocks.argmin(axis=1), minlength=BLOCK), [1] * BLOCK)
    second = np.partition(blocks, 1, axis=1)[:, 1] - blocks.min(axis=1)  # the gap to the second is Exp(1) / 31
    assert uniform(np.exp(-second * (BLOCK - 1)))


def test_a_block_with_one_first_for_all_is_convicted() -> None:
    shared = np.repeat(Noise(9).exponentials(Purpose.TARGET, np.arange(20_000)), 2).reshape(-1, 2)
    shared += Noise(8).exponentials(Purpose.TARGET, np.arange(40_000)).reshape(-1, 2)
    assert not unrelated(*np.exp(-shared.T))


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=40), st.integers(-(2**63), 2**63 - 1))
def test_the_number_of_an_id_does_not_depend_on_the_other_ids(ids: list[int], seed: int) -> None:
    noise = Noise(seed, 0, 5)
    together = noise.exponentials(Purpose.TARGET, np.array(ids))
    assert together.tolist() == [noise.exponentials(Purpose.TARGET, np.array([i]))[0] for i in ids]


def test_the_targets_own_draws_ignore_when_they_are_committed_and_no_others_do() -> None:
    early, late = Noise(1, 0, 5, 2), Noise(1, 0, 5, 4)
    assert (of_ids(early) == of_ids(late)).all()
    for purpose in set(Purpose) - {Purpose.TARGET}:
        assert early.uniform(purpose) != late.uniform(purpose)
        assert unrelated(of_ids(early, purpose), of_ids(late, purpose))


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
    numbers = Noise(42, 1, 7).exponentials(Purpose.TARGET, np.array([0, 1, 49151]))
    assert numbers.tolist() == pytest.approx([0.2730443727902909, 1.8647682759190534, 0.3669605981267876], rel=1e-14)
