"""Predicted speed-ups are Leviathan's where his assumptions hold, and right where they do not."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from outrider.plan import Forecast, Steps
from outrider.plan.forecast import Beside
from outrider.policy.costs import FREE, Costs

COSTS = Costs((1, 2, 9), (0,), ((1.0, 1.1, 1.8),))


def simulated(alpha: float, k: int, steps: int = 40_000) -> Steps:
    """Each token is accepted with probability alpha; k of them in every step."""
    chance = random.Random(1)
    outcomes: Counter[tuple[int, int]] = Counter()
    for _ in range(steps):
        accepted = 0
        while accepted < k and chance.random() < alpha:
            accepted += 1
        outcomes[k, accepted] += 1
    return Steps(k, outcomes)


@pytest.mark.parametrize("alpha", [0.2, 0.6, 0.9])
@pytest.mark.parametrize("c", [0.0, 0.1])
def test_with_one_rate_and_free_rows_it_is_the_papers_formula(alpha: float, c: float) -> None:
    forecast = Forecast.make("it", c, 0, simulated(alpha, 6).lengths(), FREE)
    for k, speed_up in enumerate(forecast.speed_ups):
        assert speed_up == pytest.approx((1 - alpha ** (k + 1)) / ((1 - alpha) * (k * c + 1)), rel=0.02)


def test_rates_are_those_of_tokens_whose_turn_came() -> None:
    steps = Steps(3, {(3, 0): 2, (3, 1): 1, (3, 3): 3, (0, 0): 4})
    assert steps.acceptance == pytest.approx((4 / 6, 3 / 4, 1))
    assert steps.alpha == pytest.approx(10 / 13)
    assert steps.spoke == pytest.approx(0.6)
    assert [each.tokens for each in steps.lengths()] == pytest.approx([1.4, 1.7, 2])


def test_steps_without_drafts_cost_nothing_more() -> None:
    steps = Steps(8, {(0, 0): 1, (1, 1): 1})
    forecast = Forecast.make("it", 0.0, 0, steps.lengths(), COSTS)
    assert forecast.speed_ups[1] == forecast.speed_ups[8] == pytest.approx(1.5 / 1.05)


def test_time_beside_passes_counts_where_it_is_spent() -> None:
    """Passes of 2 ms, whatever their rows; 0.5 ms more in a plain step, 1 in a silent one, 3 in one that drafts."""
    costs = Costs((1, 2), (0,), ((0.002, 0.002),))
    steps = [Steps(1, {(0, 0): 1, (1, 1): 1})]
    forecast = Forecast.make("it", 0.0, 0, steps, costs, Beside(0.0005, 0.001, 0.003))
    assert forecast.speed_ups[1] == pytest.approx(1.5 * 2.5 / ((3 + 5) / 2))


@pytest.mark.parametrize(
    ("c", "steps", "costs", "reason"),
    [
        (0.0, {(4, 4): 62, (4, 0): 38}, COSTS, "v(5) = 1.40 and 87% acceptance: 2.49x"),
        (0.1, {(4, 4): 62, (4, 0): 38}, COSTS, "v(5) = 1.40, 0.10 steps a token and 87% acceptance: 1.93x"),
        (0.0, {(1, 1): 2, (0, 0): 2}, FREE, "v(2) = 1.00 and 100% acceptance in the 50% of steps where it drafts: 1.50x"),
        (0.5, {(1, 1): 4, (1, 0): 6}, COSTS, "no gain: a drafted token costs 50% of a target step, at 40% acceptance"),
        (0.0, {(1, 0): 9, (1, 1): 1}, Costs((1, 2), (0,), ((1.0, 1.7),)), "no gain: one more row costs 70% of a target step, at 10% acceptance"),
        (0.0, {(0, 0): 100}, COSTS, "no gain: it drafts in 0% of the steps"),
    ],
)  # fmt: skip
def test_the_reason_is_one_sentence(c: float, steps: dict[tuple[int, int], int], costs: Costs, reason: str) -> None:
    assert Forecast.make("it", c, 0, Steps(4, steps).lengths(), costs).reason(costs) == reason


def test_the_best_length_is_none_where_nothing_pays() -> None:
    assert Forecast.make("it", 0.9, 0, simulated(0.1, 4, 500).lengths(), COSTS).best == 0


def test_no_steps_at_all_promise_nothing() -> None:
    assert Forecast.make("it", 0.0, 0, Steps(3, {}).lengths(), COSTS).speed_up == 1
