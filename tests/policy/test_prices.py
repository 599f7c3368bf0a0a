"""Costs follow the running figures, but neither noise nor a machine that is slower as a whole."""

from __future__ import annotations

import random

import pytest

from outrider.policy.costs import Costs
from outrider.policy.prices import Prices, a_ratio
from tests.policy.worlds import Claiming

COSTS = Costs((1, 2, 9), (0,), ((0.002, 0.0022, 0.0036),))


class Machine:
    """Passes that take what they cost, times a factor for the whole machine, and one for what rows add."""

    def __init__(self, *, speed: float = 1.0, rows: float = 1.0, noise: float = 0.0) -> None:
        self.now = 0.0
        self.speed, self.rows, self._noise = speed, rows, noise
        self._chance = random.Random(1)
        self.drafter = Claiming("paid", 0.5, cost=0.1)
        self.prices = Prices(COSTS, [self.drafter], lambda: self.now)

    def step(self, drafted: int, rows: int = 1, requests: int = 1) -> None:
        self.prices.step_begins(requests, rows, drafted, 0)
        passes = 1 + self.rows * (COSTS.v(1 + drafted) - 1)
        hiccup = 30 if self._chance.random() < 0.1 else 1
        self.now += 0.002 * self.speed * passes * (1 + self._noise * self._chance.uniform(-1, 1)) * hiccup
        self.prices.step_ends()
        self.prices.step_ends()

    def draft(self, c: float, tokens: int = 4) -> None:
        start = self.prices.now()
        self.now += 0.002 * self.speed * c * tokens
        self.prices.asked(self.drafter, start, tokens, 0)

    def run(self, steps: int = 400, drafted: int = 8) -> float:
        for _ in range(steps):
            self.step(0)
            self.step(drafted)
        return self.prices.added(1, 0, 8)[8] / COSTS.added(1, 0, 8)[8]

    def prices_per_row(self) -> float:
        return self.run() * COSTS.added(1, 0, 8)[8] / 8


@pytest.mark.parametrize("speed", [0.5, 1, 3])
def test_on_a_machine_that_stays_as_it_is_costs_do_too(speed: float) -> None:
    assert Machine(speed=speed, noise=0.1).run() == 1


@pytest.mark.parametrize("drafted", [1, 2, 4])
def test_noise_changes_nothing(drafted: int) -> None:
    machine = Machine(noise=0.05)
    assert {machine.run(10, drafted) for _ in range(200)} == {1.0}


def test_no_row_takes_time_off_where_rows_get_cheaper() -> None:
    """Where v bends down, as it does on some machines, what is taken off each row must not make the next one negative."""
    time = 0.0
    table = Costs((1, 2, 4, 6), (0,), ((0.002, 0.00248, 0.00298, 0.00334),))
    prices = Prices(table, [], lambda: time)
    for _ in range(400):
        for drafted in (0, 5):
            prices.step_begins(1, 1, drafted, 0)
            time += 0.002
            prices.step_ends()
    added = prices.added(1, 0, 8)
    assert added[5] < table.added(1, 0, 5)[5]
    assert list(added) == sorted(added)


@pytest.mark.parametrize("rows", [1.5, 2.5])
def test_rows_that_become_dearer_are_noticed(rows: float) -> None:
    assert Machine(rows=rows, noise=0.1).run() == pytest.approx(rows, rel=0.2)


def test_rows_that_cost_nothing_when_they_were_measured_may_do_so_later() -> None:
    """Two processors may have a core each now, and share one in the next minute."""
    machine = Machine(noise=0.05)
    machine.prices = Prices(Costs((1, 3, 9), (0,), ((0.002, 0.002, 0.0036),)), [], lambda: machine.now)
    assert machine.prices.added(1, 0, 2) == (0.0, 0.0, 0.0)
    for _ in range(300):
        machine.step(0)
        machine.step(2)  # which takes 1.2 plain ones
    assert machine.prices.added(1, 0, 2)[2] == pytest.approx(0.2, rel=0.2)


def test_rows_never_become_much_cheaper_nor_dearer_than_was_measured() -> None:
    assert Machine(rows=0.01).run() == pytest.approx(1 / 8)
    assert Machine(rows=100).prices_per_row() == pytest.approx(COSTS.added(1, 0, 8)[8] / 8 + 1)


ROWS = (1, 2, 3, 4, 6, 8, 12)
BETTER = (1.0, 1.01, 1.03, 1.08, 1.28, 1.53, 2.12)
WORSE = (1.0, 1.17, 1.32, 1.50, 1.94, 2.37, 3.45)
"""v(n) of the default model on one machine, in a better and in a worse minute."""


@pytest.mark.parametrize(("measured", "now"), [(BETTER, WORSE), (WORSE, BETTER)])
def test_a_machine_that_changes_its_state_is_noticed(measured: tuple[float, ...], now: tuple[float, ...]) -> None:
    time, truth, chance = 0.0, Costs(ROWS, (0,), (now,)), random.Random(1)
    prices = Prices(Costs(ROWS, (0,), (tuple(0.003 * v for v in measured),)), [], lambda: time)
    for _ in range(64):
        for drafted in (0, chance.randint(1, 5)):
            prices.step_begins(1, 1, drafted, 0)
            time += 0.003 * truth.v(1 + drafted) * chance.uniform(0.95, 1.05)
            prices.step_ends()
    assert prices.added(1, 0, 5) == pytest.approx(truth.added(1, 0, 5), abs=0.12)


def test_a_drafters_price_is_corrected_likewise() -> None:
    machine = Machine()
    for _ in range(300):
        machine.draft(0.25)
    assert machine.prices.token(machine.drafter) == pytest.approx(0.25, rel=0.2)


def test_a_slow_machine_does_not_make_a_drafter_dear() -> None:
    machine = Machine(speed=2.5)
    for _ in range(400):
        machine.step(0)
        machine.draft(0.1)
    assert machine.prices.token(machine.drafter) == pytest.approx(0.1)


def test_passes_with_prompts_or_requests_that_do_not_draft_tell_nothing() -> None:
    machine = Machine(rows=3)
    for _ in range(400):
        machine.step(8, rows=9, requests=1)
    assert machine.prices.added(1, 0, 8) == COSTS.added(1, 0, 8)


def test_without_a_clock_nothing_is_corrected() -> None:
    prices = Prices(COSTS, [], None)
    for _ in range(500):
        prices.step_begins(1, 1, 8, 0)
        prices.step_ends()
    assert prices.added(1, 0, 8) == COSTS.added(1, 0, 8)


def test_a_free_drafter_stays_free() -> None:
    free = Claiming("free", 0.5)
    assert Prices(COSTS, [free], None).token(free) == 0


def test_outliers_do_not_move_a_median() -> None:
    median = a_ratio()
    for i in range(3000):
        median.see(10.0 if i % 5 == 0 else -0.01 * (i % 3))
    assert median.held == 0


def test_each_context_is_corrected_by_itself() -> None:
    """It was measured by itself, and perhaps in another minute."""
    now = 0.0
    prices = Prices(Costs((1, 9), (100, 1000), ((0.002, 0.0028), (0.003, 0.0048))), [], lambda: now)
    for context, seconds in ((100, 0.0036), (1000, 0.0048)) * 200:  # at 100 rows take twice what they did
        for drafted, time in ((0, {100: 0.002, 1000: 0.003}[context]), (8, seconds)):
            prices.step_begins(1, 1, drafted, context)
            now += time
            prices.step_ends()
    assert prices.added(1, 100, 8)[8] == pytest.approx(0.8, rel=0.2)
    assert prices.added(1, 500, 8)[8] == pytest.approx(0.4 + prices._costs.added(1, 500, 8)[8], rel=0.2)
    assert prices.added(1, 1000, 8)[8] == pytest.approx(0.6)
    assert prices.added(1, 5000, 8)[8] == pytest.approx(0.6)
