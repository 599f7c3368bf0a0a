"""A request never loses more than a small part of its plain work."""

from __future__ import annotations

import pytest

from outrider.kernels._drafting import BUDGET, Ledger


def test_whoever_spends_only_what_there_is_room_for_is_never_much_slower_than_plain() -> None:
    """Every draft fails, and each costs all that may be risked."""
    ledger = Ledger()
    for _ in range(300):
        ledger.enter(1, max(ledger.room, 0.0))
        assert ledger.tokens / (ledger.steps + ledger.spent) >= 1 / (1 + BUDGET) - 1e-9


def test_steps_saved_make_room() -> None:
    ledger = Ledger()
    ledger.enter(4, spent=0.5)
    assert ledger.room == pytest.approx(3 - 0.5 + 4 * BUDGET)


def test_a_prompt_makes_a_little_room_and_a_long_one_no_more() -> None:
    rooms = [Ledger(prefill).room for prefill in (0, 2, 4, 4000)]
    assert rooms == pytest.approx([0, 2 * BUDGET, 4 * BUDGET, 4 * BUDGET])


def test_the_rate_tends_to_the_speed_up() -> None:
    ledger = Ledger()
    assert ledger.rate == 1
    for _ in range(1000):
        ledger.enter(3, spent=0.5)
    assert ledger.rate == pytest.approx(2, abs=0.02)


@pytest.mark.parametrize("steps", [1, 2, 30])
def test_plain_steps_can_be_entered_at_once(steps: int) -> None:
    one_by_one, at_once = Ledger(3.0), Ledger(3.0)
    for ledger in (one_by_one, at_once):
        for _ in range(10):
            ledger.enter(3, spent=0.5)
    for _ in range(steps):
        one_by_one.enter(1, 0.0)
    at_once.plain(steps)
    assert at_once.room == pytest.approx(one_by_one.room)
    assert at_once.rate == pytest.approx(one_by_one.rate)


def test_time_is_never_worth_less_than_plain_decoding() -> None:
    ledger = Ledger()
    ledger.enter(1, spent=5)
    assert ledger.rate == 1
