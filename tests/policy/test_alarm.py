"""What is of no use is tried again after 1, 3, 7 and then every 15 tokens; what is of use, at once."""

from __future__ import annotations

from math import inf

from outrider.policy.alarm import Alarm


def test_the_wait_doubles_up_to_an_end_and_starts_over_once_it_was_of_use() -> None:
    alarm = Alarm(on=True)
    waits = []
    for useless in (True, True, True, True, True, False, True):
        alarm.set(100, useless=useless)
        waits.append(alarm.due - 100)
    assert waits == [1, 3, 7, 15, 15, 0, 1]


def test_it_rings_at_once_or_never() -> None:
    assert (Alarm(on=True).due, Alarm(on=False).due) == (0, inf)
