"""The controller picks drafters and lengths by what they bring, and no drafter can break it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from outrider.drafters.base import Drafter, DraftRequest, Observation, RequestView
from outrider.policy.controller import Controller
from outrider.types import EMPTY, Proposal


class Scripted(Drafter):
    """Proposes `tokens[id]`, records its life, and raises in `fails` for request `culprit`."""

    def __init__(self, name: str, tokens: dict[int, list[int]], fails: str = "", culprit: int = 1) -> None:
        self.name, self.tokens, self.fails, self.culprit = name, tokens, fails, culprit
        self.calls: list[tuple[str, int]] = []

    def _called(self, what: str, request_id: int) -> None:
        self.calls.append((what, request_id))
        if what == self.fails and request_id == self.culprit:
            raise RuntimeError(f"{self.name} broke")

    def begin(self, request: RequestView) -> None:
        self._called("begin", request.id)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        for request in requests:
            self._called("propose", request.id)
        return [Proposal.chain(self.tokens.get(request.id, []), self.name) for request in requests]

    def observe(self, observation: Observation) -> None:
        self._called("observe", observation.id)

    def end(self, request_id: int) -> None:
        self._called("end", request_id)


def request(request_id: int, most: int = 9) -> DraftRequest:
    return DraftRequest(id=request_id, tokens=[1], prompt_length=1, most=most)


def observation(request_id: int) -> Observation:
    return Observation(id=request_id, committed=(1,), proposal=EMPTY, path=())


def started(*drafters: Drafter, requests: int = 2) -> Controller:
    ladder = Controller(drafters)
    for request_id in range(1, requests + 1):
        ladder.begin(request(request_id))
    return ladder


def test_the_first_that_has_something_to_say_wins_request_by_request() -> None:
    first, second = Scripted("first", {1: [5]}), Scripted("second", {1: [6], 2: [7], 3: [8]})
    proposals = started(first, second, requests=4).propose([request(i) for i in (1, 2, 3, 4)])
    assert [(p.drafter, p.tokens) for p in proposals] == [("first", (5,)), ("second", (7,)), ("second", (8,)), ("", ())]


def test_life_cycle_reaches_every_drafter() -> None:
    first, second = Scripted("first", {1: [5]}), Scripted("second", {})
    ladder = started(first, second, requests=1)
    ladder.propose([request(1)])
    ladder.observe(observation(1))
    ladder.end(1)
    assert first.calls == [("begin", 1), ("propose", 1), ("observe", 1), ("end", 1)]
    assert second.calls == first.calls
    assert not ladder._texts


def test_no_more_than_wanted() -> None:
    greedy = Scripted("greedy", {1: [5, 6, 7], 2: [5]})
    proposals = started(greedy).propose([request(1, most=2), request(2, most=0)])
    assert [p.tokens for p in proposals] == [(5, 6), ()]
    assert greedy.calls[-1] == ("propose", 1)


@pytest.mark.parametrize("fails", ["begin", "propose", "observe", "end"])
def test_a_drafter_that_raises_is_off_for_that_request_alone(fails: str, caplog: pytest.LogCaptureFixture) -> None:
    broken, sound = Scripted("broken", {1: [5], 2: [6]}, fails), Scripted("sound", {1: [7]})
    with caplog.at_level(logging.WARNING):
        ladder = started(broken, sound)
        for _ in range(2):
            proposals = ladder.propose([request(1), request(2)])
            ladder.observe(observation(1))
            ladder.observe(observation(2))
    expected = "broken" if fails == "end" else "sound"
    assert [p.drafter for p in proposals] == [expected, "broken"]
    ladder.end(1)
    ladder.end(2)
    assert [c for c in broken.calls if c[0] == "end"] == [("end", 1), ("end", 2)]  # it may hold something still
    assert len(caplog.records) == 1
    assert "broken is off for request 1: RuntimeError: broken broke" in caplog.text


def test_an_answer_of_the_wrong_length_is_a_failure() -> None:
    class Short(Scripted):
        def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
            return []

    sound = Scripted("sound", {1: [7], 2: [8]})
    assert [p.drafter for p in started(Short("short", {}), sound).propose([request(1), request(2)])] == ["sound"] * 2


def test_a_new_request_starts_with_all_drafters(caplog: pytest.LogCaptureFixture) -> None:
    broken = Scripted("broken", {1: [5], 2: [6]}, "propose")
    ladder = started(broken)
    assert [len(p) for p in ladder.propose([request(1), request(2)])] == [0, 1]
    ladder.end(1)
    ladder.begin(request(3))
    broken.tokens[3] = [9]
    assert ladder.propose([request(3)])[0].tokens == (9,)


def test_without_drafters_it_is_plain_decoding() -> None:
    assert started().propose([request(1)]) == [EMPTY]
