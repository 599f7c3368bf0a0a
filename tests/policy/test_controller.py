"""The controller asks, cuts and stands aside; what was drawn it does not cut; and no drafter can break it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from outrider.drafters.base import Drafter, DraftRequest, Observation, RequestView
from outrider.policy.controller import Controller
from outrider.policy.costs import FREE, Costs
from outrider.sampling import SamplingParams
from outrider.speculation import AUTO, Speculation
from outrider.types import DECLINED, EMPTY, ROOT, Proposal

CHEAP = Costs((1, 2), (0,), ((1.0, 1.001),))
MIDDLE = Costs((1, 2), (0,), ((1.0, 1.3),))
DEAR = Costs((1, 2), (0,), ((1.0, 2.5),))


class Scripted(Drafter):
    """Proposes `tokens[id]`, records its life, and raises in `fails` for request `culprit`."""

    def __init__(
        self,
        name: str,
        tokens: dict[int, list[int]],
        fails: str = "",
        culprit: int = 1,
        *,
        estimates: Sequence[float] = (),
        cost: float = 0.0,
        draws: bool = False,
        drawn: bool = False,
        expected: Sequence[float] = (0.6,),
    ) -> None:
        self.name, self.tokens, self.fails, self.culprit = name, tokens, fails, culprit
        self.cost, self.draws, self.expected = cost, draws, expected
        self.estimates, self.drawn = estimates, drawn
        self.calls: list[tuple[str, int]] = []
        self.mosts: list[int] = []

    def _called(self, what: str, request_id: int) -> None:
        self.calls.append((what, request_id))
        if what == self.fails and request_id == self.culprit:
            raise RuntimeError(f"{self.name} broke")

    def begin(self, request: RequestView) -> None:
        self._called("begin", request.id)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        proposals = []
        for request in requests:
            self._called("propose", request.id)
            self.mosts.append(request.most)
            tokens = self.tokens.get(request.id, [])
            if self.cost or self.draws:
                tokens = tokens[: request.most]
            estimates = self.estimates[: len(tokens)] or None
            q = [np.array([0.5, 0.5])] * len(tokens) if self.drawn else None
            proposals.append(Proposal.chain(tokens, self.name, estimates, q))
        return proposals

    def observe(self, observation: Observation) -> None:
        self._called("observe", observation.id)

    def end(self, request_id: int) -> None:
        self._called("end", request_id)


def request(
    request_id: int, most: int = 9, *, speculation: Speculation = AUTO, params: SamplingParams | None = None
) -> DraftRequest:
    return DraftRequest(
        id=request_id,
        tokens=[1] * 8,
        prompt_length=1,
        most=most,
        speculation=speculation,
        params=params or SamplingParams(),
    )


def observation(request_id: int, committed: int = 1) -> Observation:
    return Observation(id=request_id, committed=(1,) * committed, proposal=EMPTY, path=())


def started(*drafters: Drafter, requests: int = 2, costs: Costs = FREE, speculation: Speculation = AUTO) -> Controller:
    """A controller with requests that have written so much that there is room for drafts."""
    controller = Controller(drafters, costs)
    for request_id in range(1, requests + 1):
        controller.begin(request(request_id, speculation=speculation))
        for _ in range(100 if costs is not FREE else 0):
            controller.observe(observation(request_id))
    return controller


def test_the_best_offer_wins_request_by_request() -> None:
    first, second = Scripted("first", {1: [5]}), Scripted("second", {1: [6, 6], 2: [7], 3: [8]})
    proposals = started(first, second, requests=4).propose([request(i) for i in (1, 2, 3, 4)])
    assert [(p.drafter, p.tokens) for p in proposals] == [
        ("second", (6, 6)),
        ("second", (7,)),
        ("second", (8,)),
        ("", ()),
    ]


def test_of_equal_offers_the_first_wins() -> None:
    proposals = started(Scripted("first", {1: [5]}), Scripted("second", {1: [6]})).propose([request(1)])
    assert proposals[0].tokens == (5,)


def test_a_chain_is_cut_where_the_next_row_no_longer_pays() -> None:
    drafter = Scripted("it", {1: [5, 6, 7, 8]}, estimates=(0.9, 0.9, 0.1, 0.9))
    costs = Costs((1, 2, 5), (0,), ((1.0, 1.1, 1.4),))
    assert started(drafter, costs=costs).propose([request(1)])[0].tokens == (5, 6)
    assert started(drafter, costs=CHEAP).propose([request(1)])[0].tokens == (5, 6, 7, 8)
    assert started(drafter, costs=DEAR).propose([request(1)]) == [DECLINED]


def test_of_a_tree_the_best_nodes_are_kept_with_their_ancestors() -> None:
    class Tree(Scripted):
        def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
            return [Proposal((1, 2, 3, 4), (ROOT, ROOT, 0, 1), "tree", (0.3, 0.6, 0.9, 0.9), (None,) * 4)]

    costs = Costs((1, 2, 5), (0,), ((1.0, 1.4, 2.6),))
    (proposal,) = started(Tree("tree", {}), costs=costs).propose([request(1)])
    assert (proposal.tokens, proposal.parents) == ((2, 4), (ROOT, 0))


def test_nothing_is_risked_at_first_where_rows_cost_something() -> None:
    controller = Controller([Scripted("it", {1: [5]})], Costs((1, 2), (0,), ((1.0, 1.2),)))
    controller.begin(request(1))
    controller.observe(observation(1))
    assert controller.propose([request(1)]) == [DECLINED]


def test_a_piece_of_a_prompt_is_no_step() -> None:
    controller = Controller([Scripted("it", {1: [5]})], FREE)
    controller.begin(request(1))
    for _ in range(50):
        controller.observe(observation(1, committed=0))
    assert controller.propose([request(1)])[0].tokens == (5,)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_what_was_drawn_is_never_cut_but_its_number_is_fixed_before(rule: str) -> None:
    """Whatever the estimates say of the draws: they may have looked at them."""
    costs = Costs((1, 2, 5), (0,), ((1.0, 1.3, 2.2),))
    sampled = SamplingParams(temperature=1.0, acceptance=rule)  # type: ignore[arg-type]
    seen = set()
    for estimates in ((0.99, 0.99), (0.01, 0.01), (0.99, 0.01)):
        drafter = Scripted(
            "it", {1: [0, 1, 0, 1]}, estimates=estimates, draws=True, drawn=True, expected=(0.9, 0.8, 0.1)
        )
        (proposal,) = started(drafter, costs=costs).propose([request(1, params=sampled)])
        seen.add((drafter.mosts[0], proposal.tokens))
    assert seen == {(2, (0, 1))}


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0, seed=1)])
def test_where_equality_decides_a_planned_chain_may_be_cut_afterwards(params: SamplingParams) -> None:
    costs = Costs((1, 2, 5), (0,), ((1.0, 1.3, 2.2),))
    drafter = Scripted("it", {1: [0, 1, 0, 1]}, estimates=(0.99, 0.01), draws=True, expected=(0.9, 0.8, 0.1))
    (proposal,) = started(drafter, costs=costs).propose([request(1, params=params)])
    assert (drafter.mosts[0], proposal.tokens) == (2, (0,))


def test_a_drafter_that_draws_without_saying_so_is_not_used() -> None:
    sampled = SamplingParams(temperature=1.0, acceptance="rejection")
    drafter = Scripted("it", {1: [0, 1]}, drawn=True)
    assert started(drafter).propose([request(1, params=sampled)]) == [EMPTY]


def test_a_long_prompt_is_read_only_when_there_is_room_for_it() -> None:
    drafter = Scripted("head", {1: [5, 6]}, cost=0.05, expected=(0.9,))
    costs = Costs((1, 16), (0,), ((1.0, 2.0),))
    controller = Controller([drafter], costs)
    tokens = [1] * 2000
    view = RequestView(id=1, tokens=tokens, prompt_length=2000)
    controller.begin(view)
    waited = 0
    for _ in range(1000):
        controller.observe(observation(1))
        tokens.append(1)
        controller.propose([DraftRequest(id=1, tokens=tokens, prompt_length=2000, most=4)])
        if drafter.mosts:
            break
        waited += 1
    assert 100 < waited < 400
    row, budget = 2 / 16, 0.025
    assert (2000 + waited) * 0.05 * row == pytest.approx(budget * (2000 * row + waited + 32), rel=0.1)


@pytest.mark.parametrize("costs", [FREE, DEAR])
def test_a_request_may_fix_the_length(costs: Costs) -> None:
    """Then the policy obeys, whatever it costs."""
    drafters = Scripted("first", {1: [5, 6, 7]}, estimates=(0.1, 0.1, 0.1)), Scripted("second", {1: [8] * 9})
    fixed = Speculation(length=2)
    (proposal,) = started(*drafters, costs=costs, speculation=fixed).propose([request(1, most=2, speculation=fixed)])
    assert (proposal.drafter, proposal.tokens) == ("first", (5, 6))


def test_a_request_may_name_its_drafter() -> None:
    first, second = Scripted("first", {1: [5, 6]}), Scripted("second", {1: [8]})
    named = Speculation("second")
    controller = started(first, second, speculation=named)
    assert controller.propose([request(1, speculation=named)])[0].tokens == (8,)
    assert first.calls == []


def test_life_cycle_reaches_every_drafter() -> None:
    first, second = Scripted("first", {1: [5]}), Scripted("second", {})
    controller = started(first, second, requests=1)
    controller.propose([request(1)])
    controller.observe(observation(1))
    controller.end(1)
    assert first.calls == [("begin", 1), ("propose", 1), ("observe", 1), ("end", 1)]
    assert second.calls == first.calls
    assert not controller._texts


def test_no_more_than_wanted() -> None:
    greedy = Scripted("greedy", {1: [5, 6, 7], 2: [5]})
    proposals = started(greedy).propose([request(1, most=2), request(2, most=0)])
    assert [p.tokens for p in proposals] == [(5, 6), ()]
    assert greedy.calls[-1] == ("propose", 1)


@pytest.mark.parametrize("fails", ["begin", "propose", "observe", "end"])
def test_a_drafter_that_raises_is_off_for_that_request_alone(fails: str, caplog: pytest.LogCaptureFixture) -> None:
    broken, sound = Scripted("broken", {1: [5, 5], 2: [6, 6]}, fails), Scripted("sound", {1: [7]})
    with caplog.at_level(logging.WARNING):
        controller = started(broken, sound)
        for _ in range(2):
            proposals = controller.propose([request(1), request(2)])
            controller.observe(observation(1))
            controller.observe(observation(2))
    expected = "broken" if fails == "end" else "sound"
    assert [p.drafter for p in proposals] == [expected, "broken"]
    controller.end(1)
    controller.end(2)
    assert [c for c in broken.calls if c[0] == "end"] == [("end", 1), ("end", 2)]  # it may hold something still
    assert len(caplog.records) == 1
    assert "broken is off for request 1: RuntimeError: broken broke" in caplog.text


@pytest.mark.parametrize("speculation", [AUTO, Speculation(length=2)])
def test_a_proposal_that_makes_no_sense_takes_nobody_elses_drafts(speculation: Speculation) -> None:
    class Upside(Scripted):
        def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
            proposals = super().propose(requests)
            proposals[0] = Proposal((5, 6), (1, ROOT), self.name, (0.5, 0.5), (None, None))  # a child before its parent
            return proposals

    controller = started(Upside("upside", {1: [5, 6], 2: [7, 8]}), speculation=speculation)
    both = [request(1, speculation=speculation), request(2, speculation=speculation)]
    assert [p.tokens for p in controller.propose(both)] == [(), (7, 8)]


def test_an_answer_of_the_wrong_length_is_a_failure() -> None:
    class Short(Scripted):
        def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
            return []

    sound = Scripted("sound", {1: [7], 2: [8]})
    assert [p.drafter for p in started(Short("short", {}), sound).propose([request(1), request(2)])] == ["sound"] * 2


def test_a_new_request_starts_with_all_drafters() -> None:
    broken = Scripted("broken", {1: [5], 2: [6]}, "propose")
    controller = started(broken)
    assert [len(p) for p in controller.propose([request(1), request(2)])] == [0, 1]
    controller.end(1)
    controller.begin(request(3))
    broken.tokens[3] = [9]
    assert controller.propose([request(3)])[0].tokens == (9,)


def written(controller: Controller, steps: int, *, speculation: Speculation = AUTO) -> list[int]:
    """Lengths of a text of so many plain steps at which the controller was asked, if it was awake."""
    tokens, asked = [1], []
    view = RequestView(id=1, tokens=tokens, prompt_length=1, speculation=speculation)
    controller.begin(view)
    for _ in range(steps):
        awake = controller.awake([1])
        if awake:
            asked.append(len(tokens))
            controller.propose([DraftRequest(id=1, tokens=tokens, prompt_length=1, speculation=speculation, most=4)])
        tokens.append(2)
        if awake:  # as the engine does
            controller.observe(Observation(id=1, committed=(2,), proposal=EMPTY, path=()))
    return asked


def test_it_sleeps_longer_and_longer_where_nobody_is_ever_right() -> None:
    asked = written(Controller([Scripted("wrong", {1: [9]})], MIDDLE), 200)
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert gaps[:6] == [1] * 6
    assert gaps[-3:] == [16] * 3
    assert asked == written(Controller([Scripted("wrong", {1: [9]})], MIDDLE), 200), "the same text, the same steps"


def test_it_stays_awake_where_somebody_is_right_or_the_length_is_fixed() -> None:
    assert len(written(Controller([Scripted("right", {1: [2]})], CHEAP), 100)) == 100
    fixed = Speculation("wrong", 3)
    assert len(written(Controller([Scripted("wrong", {1: [9]})], DEAR), 100, speculation=fixed)) == 100


def test_it_sleeps_where_whoever_is_right_could_not_pay_for_a_row() -> None:
    assert len(written(Controller([Scripted("right", {1: [2]})], DEAR), 100)) < 20


@pytest.mark.parametrize("right", [(), (3,)])
def test_those_that_only_try_anew_do_so_together(right: Sequence[int]) -> None:
    """Four texts, begun one after the other; the one whose drafter is right is asked at all times."""
    ids = range(1, 5)
    controller = Controller([Scripted("one", {id: [2] if id in right else [9] for id in ids})], CHEAP)
    texts: dict[int, list[int]] = {}
    woken = []
    for step in range(200):
        if step % 3 == 0 and len(texts) < 4:
            texts[len(texts) + 1] = [1]
            controller.begin(RequestView(id=len(texts), tokens=texts[len(texts)], prompt_length=1))
        awake = list(controller.awake(list(texts)))
        woken.append(awake)
        if awake:
            asleep = len(texts) - len(awake)
            controller.propose([
                DraftRequest(id=id, tokens=texts[id], prompt_length=1, most=4, rows=len(texts), asleep=asleep)
                for id in awake
            ])  # fmt: skip
        for id in texts:
            texts[id].append(2)
            if id in awake:
                controller.observe(Observation(id=id, committed=(2,), proposal=EMPTY, path=()))
    settled = woken[100:]
    if right:
        assert all(3 in awake for awake in settled)
    else:
        assert 6 <= sum(map(bool, settled)) <= 7
    for id in set(ids) - set(right):
        assert 4 <= sum(id in awake for awake in settled) <= 8, "each is tried from time to time"


def test_it_never_wakes_for_a_request_that_nobody_serves() -> None:
    class Elsewhere(Scripted):
        def serves(self, request: RequestView) -> bool:
            return False

    drafter = Elsewhere("elsewhere", {1: [2]})
    assert written(Controller([drafter], FREE), 20) == []
    assert written(Controller(()), 20) == []
    assert drafter.calls == []


def test_who_is_not_free_is_planned_for_less_and_less_often_where_that_never_pays() -> None:
    asked = written(Controller([Scripted("dear", {1: [2]}, cost=5.0)], DEAR), 100)
    assert [later - earlier for earlier, later in pairwise(asked)] == [2, 4, 8, *[16] * 5]


def test_steps_that_it_slept_through_count_as_plain_ones() -> None:
    told, slept = (Controller([Scripted("wrong", {1: [9]})], DEAR) for _ in range(2))
    written(slept, 200)
    written(told, 0)
    for _ in range(199):
        told.observe(observation(1))
    slept._texts[1].wakes()
    assert slept._texts[1].ledger.room == pytest.approx(told._texts[1].ledger.room, rel=0.01)


def test_without_drafters_it_is_plain_decoding() -> None:
    assert started().propose([request(1)]) == [EMPTY]


def test_no_draft_is_told_from_one_that_would_not_pay() -> None:
    """The former is nobody's fault; the latter is what was offered and cut, or not asked for at all."""
    assert started(Scripted("silent", {}), costs=DEAR).propose([request(1)]) == [EMPTY]
    three = Speculation.parse("silent:3")
    planned = started(Scripted("silent", {}, cost=0.1), speculation=three)
    assert planned.propose([request(1, speculation=three)]) == [EMPTY]
    assert started(Scripted("cheap", {1: [5]}), costs=DEAR).propose([request(1)]) == [DECLINED]
    dear = Scripted("dear", {1: [5]}, cost=5)
    assert started(dear, costs=CHEAP).propose([request(1)]) == [DECLINED]
    assert not dear.mosts
    seldom = Scripted("seldom", {})
    controller, answers = started(seldom, costs=CHEAP), []
    for _ in range(400):
        asked = len(seldom.mosts)
        (answer,) = controller.propose([request(1)])
        answers.append((len(seldom.mosts) > asked, answer.declined))
        controller.observe(observation(1))
    assert set(answers) == {(True, False), (False, True)}
    assert started(Scripted("switched off", {1: [5]}, "begin"), costs=DEAR).propose([request(1)]) == [EMPTY]
