"""Estimates are corrected by what became of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.kernels._drafting import Calibration
from outrider.policy.acceptance import Acceptance


def taught(estimate: float, accepted: float, outcomes: int, seed: int = 0) -> Calibration:
    """After so many tokens of that estimate, of which that share was accepted."""
    calibration, chance = Calibration(), random.Random(seed)
    for _ in range(outcomes):
        calibration.learn([(estimate, chance.random() < accepted)])
    return calibration


def test_estimates_are_believed_to_begin_with() -> None:
    assert [Calibration().believed(p) for p in (0.1, 0.5, 0.9)] == pytest.approx([0.1, 0.5, 0.9])


@pytest.mark.parametrize(("estimate", "truth"), [(0.9, 0.2), (0.2, 0.9), (0.5, 0.5), (0.6, 0.02)])
def test_what_is_off_is_corrected(estimate: float, truth: float) -> None:
    beliefs = [taught(estimate, truth, 200, seed).believed(estimate) for seed in range(20)]
    assert sum(beliefs) / 20 == pytest.approx(truth, abs=0.06)


def test_a_few_failures_are_enough_to_doubt() -> None:
    assert taught(0.8, 0, 6).believed(0.8) < 0.5


def test_the_drafters_ranking_is_kept() -> None:
    calibration = taught(0.7, 0.1, 30)
    beliefs = [calibration.believed(p / 20) for p in range(1, 20)]
    assert beliefs == sorted(beliefs)


def test_a_text_that_changes_its_nature_is_followed() -> None:
    calibration = taught(0.5, 1, 300)
    for _ in range(60):
        calibration.learn([(0.5, False)])
    assert calibration.believed(0.5) < 0.45


@pytest.mark.parametrize("estimate", [float("nan"), float("inf"), -1.0, 0.0, 1.0, 7.0])
def test_no_estimate_is_certain_or_no_number(estimate: float) -> None:
    calibration = Calibration()
    for accepted in (True, False):
        calibration.learn([(estimate, accepted)] * 50)
        assert 0 < calibration.believed(estimate) < 1


def test_gains_are_products_along_the_path() -> None:
    calibration = Calibration()
    calibration.hear((5, 6, 7, 8), (-1, 0, 1, -1), (0.8, 0.5, 0.5, 0.1))
    assert calibration.gains() == pytest.approx([0.8, 0.4, 0.2, 0.1])


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int], list[float]]:
    """Tokens, parents, estimates."""
    count = draw(st.integers(0, 8))
    parents = [draw(st.integers(-1, node - 1)) for node in range(count)]
    return (
        draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)),
        parents,
        draw(st.lists(st.floats(0, 1), min_size=count, max_size=count)),
    )


class ByHand:
    """What `Calibration` learns and makes of proposals, as the equations have it."""

    def __init__(self) -> None:
        self.log, self.precision = 0.0, 2.0

    def believed(self, estimate: float) -> float:
        p = min(max(0.01, estimate), 0.99)
        odds = exp(self.log) * p / (1 - p)
        return odds / (1 + odds)

    def follow(self, tree: tuple[list[int], list[int], list[float]], text: Sequence[int]) -> bool:
        here, left, surprise, information = -1, list(text), 0.0, 0.0
        for node, (token, parent, estimate) in enumerate(zip(*tree, strict=True)):
            if parent == here and left:
                p, right = self.believed(estimate), token == left[0]
                surprise += right - p
                information += p * (1 - p)
                if right:
                    here = node
                    left.pop(0)
        self.precision = min(self.precision + information, 12)
        self.log = min(max(self.log + surprise / self.precision, -4), 4)
        return here >= 0

    def weigh(
        self, tree: tuple[list[int], list[int], list[float]], room: float, added: Sequence[float], worth: float
    ) -> tuple[float, list[float]]:
        """The greatest value of the first so many nodes, and the gains of all."""
        gains: list[float] = []
        for parent, estimate in zip(*tree[1:], strict=True):
            gains.append(self.believed(estimate) * (gains[parent] if parent >= 0 else 1))
        gains.sort(reverse=True)
        counts = [n for n in range(min(len(gains), len(added) - 1) + 1) if added[n] <= room]
        return max(sum(gains[:n]) - worth * added[n] for n in counts), gains


@given(st.lists(st.tuples(trees(), st.lists(st.integers(0, 2), max_size=4)), max_size=6), trees(), st.floats(0, 2))
def test_it_learns_and_weighs_as_the_equations_have_it(
    lessons: list[tuple[tuple[list[int], list[int], list[float]], list[int]]],
    tree: tuple[list[int], list[int], list[float]],
    room: float,
) -> None:
    calibration, by_hand = Calibration(), ByHand()
    for lesson, text in lessons:
        calibration.hear(*lesson)
        assert calibration.follow(text) is by_hand.follow(lesson, text)
    added = [0, 0.1, 0.3, 0.3, 0.9, 1.0, 1.7]
    calibration.hear(*tree)
    value, gains = by_hand.weigh(tree, room, added, 1.2)
    found = calibration.weigh(room, added, 1.2, -1.0)
    assert found is not None
    assert found[0] == pytest.approx(value)
    assert found[1] == pytest.approx(gains)
    order = found[2] or range(len(gains))
    assert [calibration.gains()[node] for node in order] == found[1]
    assert all(tree[1][node] in (-1, *order[:place]) for place, node in enumerate(order)), "a child before its parent"
    assert calibration.weigh(room, added, 1.2, found[0]) is None, "it has to be better"


@pytest.mark.parametrize(
    ("parents", "estimates", "error"), [((0,), (0.5,), IndexError), ((-1,), (), ValueError), ((-1,), ("x",), TypeError)]
)
def test_what_is_no_tree_is_refused(parents: tuple[int], estimates: tuple[float], error: type[Exception]) -> None:
    with pytest.raises(error):
        Calibration().hear((1,), parents, estimates)


def test_acceptance_is_what_is_expected_until_something_is_seen() -> None:
    assert Acceptance((0.8, 0.5)).gains(3) == pytest.approx([0.8, 0.4, 0.2])


def test_acceptance_follows_what_is_seen_depth_by_depth() -> None:
    acceptance = Acceptance((0.5,))
    for _ in range(200):
        acceptance.learn(1, refused=True)  # the first always, the second never
    first, second, third = acceptance.gains(3)
    assert first > 0.95
    assert second < 0.05
    assert third == pytest.approx(second * 0.5), "of the third nothing is known"


def test_a_chain_that_was_accepted_whole_says_nothing_of_the_next_depth() -> None:
    acceptance = Acceptance((0.5,))
    for _ in range(100):
        acceptance.learn(1, refused=False)
    first, second = acceptance.gains(2)
    assert second == pytest.approx(first / 2)


def test_a_table_without_entries_is_refused() -> None:
    calibration = Calibration()
    calibration.hear((5,), (-1,), (0.5,))
    with pytest.raises(IndexError):
        calibration.weigh(1.0, (), 1.0, 0.0)
