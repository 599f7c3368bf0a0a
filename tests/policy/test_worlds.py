"""In worlds where the best answer is known, the controller finds it, and nowhere does it cost what it must not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import inf
from statistics import fmean

import pytest

from outrider.kernels._drafting import Calibration, Ledger
from outrider.policy import text
from outrider.policy.costs import Costs
from outrider.sampling import SamplingParams
from outrider.sampling.params import Rule
from tests.policy.worlds import COSTS, FLAT, MIDDLE, STEEP, Claiming, World, play

HONEST = [World(*each) for each in product(("flat", "middle", "steep"), (0.02, 0.2, 0.5, 0.8, 0.95))]
PAID = [
    World(costs, alpha, c=c) for costs, alpha, c in product(("flat", "middle"), (0.02, 0.5, 0.8, 0.95), (0.05, 0.2))
]
OPTIMISTS = [World(costs, 0.01, says=0.95) for costs in ("flat", "middle", "steep")]
PESSIMISTS = [World(costs, 0.9, says=0.3) for costs in ("flat", "middle", "steep")]

NEVER_SLOWER = 0.97


def regret(world: World, speeds: list[float]) -> float:
    """How much slower than the best fixed length would have been, chance included."""
    return 1 - fmean(speeds) / max(1.0, fmean(world.speeds(world.best_length)))


@pytest.mark.parametrize("world", HONEST, ids=str)
def test_a_free_honest_drafter_is_used_as_well_as_can_be(world: World) -> None:
    speeds = world.speeds()
    assert regret(world, speeds) < 0.06
    assert min(speeds) > NEVER_SLOWER


@pytest.mark.parametrize("world", PAID, ids=str)
def test_so_is_one_that_takes_time_and_not_at_all_where_it_does_not_pay(world: World) -> None:
    speeds = world.speeds()
    assert regret(world, speeds) < 0.07
    assert min(speeds) > NEVER_SLOWER


@pytest.mark.parametrize("world", OPTIMISTS, ids=str)
def test_who_promises_too_much_is_seen_through(world: World) -> None:
    assert min(world.speeds()) > NEVER_SLOWER


@pytest.mark.parametrize("world", PESSIMISTS, ids=str)
def test_who_promises_too_little_is_used_all_the_same(world: World) -> None:
    assert regret(world, world.speeds()) < 0.06


def test_a_policy_that_believes_what_it_is_told_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: no calibration, no budget."""

    class Credulous(Calibration):
        def follow(self, committed: Sequence[int]) -> bool:
            return False

    class Unbounded(Ledger):
        room = inf

    monkeypatch.setattr(text, "Calibration", Credulous)
    monkeypatch.setattr(text, "Ledger", Unbounded)
    assert min(OPTIMISTS[0].speeds(texts=1)) < NEVER_SLOWER
    assert regret(World("middle", 0.3, says=0.9), World("middle", 0.3, says=0.9).speeds(texts=4)) > 0.1


@pytest.mark.parametrize("world", [World("middle", 0.5), World("steep", 0.9), World("flat", 0.01, says=0.9)], ids=str)
@pytest.mark.parametrize("batch", [4, 8])
def test_no_text_of_a_batch_is_slower_than_plain(world: World, batch: int) -> None:
    outcomes = play([Claiming("it", world.alpha, world.says)], world.costs, batch=batch)
    assert min(outcome.speed for outcome in outcomes) > NEVER_SLOWER


@pytest.mark.parametrize("knee", [3.0, 8.0])
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_what_is_drawn_and_always_wrong_costs_a_batch_no_more_than_may_be_lost(rule: Rule, knee: float) -> None:
    """Up to the eighth, rows are cheap: of four chains, each would be if it came alone."""
    costs = Costs((1, 8, 16), (0,), ((1.0, 1.02, knee),))
    params = SamplingParams(temperature=1.0, acceptance=rule)
    outcomes = play([Claiming("it", 0.0, says=0.95, draws=True)], costs, batch=4, length=60, params=params)
    assert any(sum(outcome.drafted) > 0 for outcome in outcomes)
    assert sum(outcome.work for outcome in outcomes) <= sum(1.025 * len(outcome.text) + 0.1 for outcome in outcomes)


def test_the_more_requests_the_shorter_the_drafts() -> None:
    lengths = []
    for batch in (1, 4, 8):
        outcomes = play([Claiming("it", 0.8)], MIDDLE, batch=batch)
        lengths.append(fmean(n for outcome in outcomes for n in outcome.drafted))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < 0.7 * lengths[0]


@pytest.mark.parametrize("prices", ["flat", "middle"])
def test_the_better_of_two_drafters_is_found_whatever_they_claim(prices: str) -> None:
    (outcome,) = play([Claiming("boaster", 0.1, 0.7), Claiming("modest", 0.8, 0.5)], COSTS[prices])
    assert outcome.speed > 0.9 * World(prices, 0.8).best


def test_a_dear_drafter_is_asked_only_where_the_free_one_promises_less() -> None:
    dear = Claiming("dear", 0.9, cost=0.1)
    (outcome,) = play([Claiming("free", 0.9), dear], FLAT)
    assert outcome.speed > 0.9 * World("flat", 0.9).best
    (outcome,) = play([Claiming("free", 0.05), dear], FLAT)
    assert outcome.speed > 0.9 * World("flat", 0.9, c=0.1).best


def test_the_same_request_takes_the_same_steps() -> None:
    first, again = (play([Claiming("it", 0.6)], MIDDLE)[0].drafted for _ in range(2))
    assert first == again
    assert play([Claiming("it", 0.6, seed=1)], MIDDLE)[0].drafted != first


def test_where_nothing_pays_nothing_is_drafted() -> None:
    (outcome,) = play([Claiming("it", 0.3)], STEEP)
    assert set(outcome.drafted) == {0}


def test_drafts_that_were_not_verified_teach_too() -> None:
    """Rows are so dear that nothing can be tried: what is committed shows that the drafter is better than it says."""
    (outcome,) = play([Claiming("it", 0.95, says=0.2)], STEEP)
    assert outcome.speed > 0.9 * World("steep", 0.95).best
