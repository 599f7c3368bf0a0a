"""Estimates are corrected by what became of them."""

from __future__ import annotations

import random

import pytest

from outrider.policy.calibration import Acceptance, Calibration


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
    gains = Calibration().gains((0.8, 0.5, 0.5, 0.1), (-1, 0, 1, -1))
    assert gains == pytest.approx([0.8, 0.4, 0.2, 0.1])


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
