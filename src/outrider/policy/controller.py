"""Which drafter proposes, and how much, or none at all: the policy that makes speculation never slower.

Controller([drafters.create("prediction"), drafters.create("suffix")], costs) is itself a drafter. docs/policy.md
explains the arithmetic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from outrider.drafters.base import Drafter, DraftRequest, Observation, RequestView
from outrider.policy.alarm import LONGEST
from outrider.policy.costs import FREE, Costs
from outrider.policy.decision import Decision
from outrider.policy.prices import Prices
from outrider.policy.text import Text
from outrider.types import EMPTY, Proposal

log = logging.getLogger(__name__)

_LOOKUP = 8e-5  # seconds: the policy, its free drafters and all around them, with caches that a pass has just emptied
_ROWS = 16  # a row of a prompt costs what one of so many rows does


class Controller(Drafter):
    """Asks its drafters, cuts what they propose to what pays, and stands aside where nothing does.

    A drafter that raises is switched off for that request, with one warning; the text is the same without it.
    """

    name = "controller"

    def __init__(
        self, drafters: Sequence[Drafter], costs: Costs = FREE, clock: Callable[[], float] | None = None
    ) -> None:
        """clock: corrects the costs by the times of steps and drafters; None: they are taken as they are."""
        self._free = [drafter for drafter in drafters if not drafter.cost and not drafter.draws]
        self._planned = [drafter for drafter in drafters if drafter.cost or drafter.draws]
        self._drafters = tuple(drafters)
        self.taps = any(drafter.taps for drafter in drafters)
        self._prices = Prices(costs, drafters, clock)
        self._prefill = costs.v(_ROWS) / _ROWS
        self._lookup = _LOOKUP / costs.plain(0)
        self._texts: dict[int, Text] = {}
        self._steps = 0

    def begin(self, request: RequestView) -> None:
        wanted = request.speculation.drafter
        drafters = [each for each in self._drafters if wanted in (None, each.name) and each.serves(request)]
        prefill = request.prompt_length * self._prefill
        text = self._texts[request.id] = Text(request, drafters, prefill)
        for drafter in drafters:
            try:
                drafter.begin(request)
            except Exception as error:
                self._switch_off(drafter, request.id, error)
        text.observers = [drafter for drafter in text.active if type(drafter).observe is not Drafter.observe]

    def awake(self, request_ids: Sequence[int]) -> Sequence[int]:
        # To wake anybody takes most of the time that it takes to wake all: in a batch, those that have long been asleep
        # are woken together.
        self._steps += 1
        wakes = len(request_ids) == 1 or self._steps % (LONGEST + 1) == 0
        awake = []
        for request_id in request_ids:
            text = self._texts[request_id]
            if len(text.tokens) >= text.due:
                awake.append(request_id)
                wakes = wakes or text.eager
        return awake if wakes else ()

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        texts = [self._texts[request.id] for request in requests]
        decision = Decision(requests, texts, self._prices, self._prefill, self._lookup)
        for drafter in self._free:
            if asked := decision.asks(drafter):
                answers = self._ask(drafter, [requests[i] for i in asked])
                self._offer(decision, drafter, requests, zip(asked, answers, strict=True))
        if self._planned:
            for drafter, mosts in decision.plans(self._planned).items():
                start = self._prices.now()
                answers = self._ask(drafter, [_at_most(requests[i], most) for i, most in mosts.items()])
                if len(answers) == 1:
                    self._prices.asked(drafter, start, len(answers[0]), decision.context)
                self._offer(decision, drafter, requests, zip(mosts, answers, strict=True))
        proposals = decision.proposals()
        self._prices.step_begins(len(requests), decision.rows, decision.drafted, decision.context)
        return proposals

    def price(self, drafter: str) -> float:
        """Of a drafted token of the drafter of that name, in one-row passes of the target."""
        return next(self._prices.token(each) for each in self._drafters if each.name == drafter)

    def observe(self, observation: Observation) -> None:
        self._prices.step_ends()
        text = self._texts[observation.id]
        text.learn(observation)
        for drafter in text.observers:
            if drafter in text.active:
                try:
                    drafter.observe(observation)
                except Exception as error:
                    self._switch_off(drafter, observation.id, error)

    def end(self, request_id: int) -> None:
        self._texts.pop(request_id, None)
        if not self._texts:
            self._steps = 0  # the same batch again takes the same steps
        for drafter in self._drafters:  # also those switched off: they hold something still
            try:
                drafter.end(request_id)
            except Exception as error:
                self._switch_off(drafter, request_id, error)

    def _ask(self, drafter: Drafter, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """The drafter's answers; when it fails, it is asked again one by one, to find the request it fails on."""
        try:
            proposals = drafter.propose(requests)
            if len(proposals) != len(requests):
                raise ValueError(f"{len(proposals)} proposals for {len(requests)} requests")
        except Exception as error:
            if len(requests) == 1:
                self._switch_off(drafter, requests[0].id, error)
                return [EMPTY]
            return [self._ask(drafter, [request])[0] for request in requests]
        return proposals

    def _offer(
        self,
        decision: Decision,
        drafter: Drafter,
        requests: Sequence[DraftRequest],
        answers: Iterable[tuple[int, Proposal]],
    ) -> None:
        """What makes no sense costs the one request its drafter, and the others nothing."""
        for place, proposal in answers:
            try:
                decision.offer(place, drafter, proposal)
            except Exception as error:
                self._switch_off(drafter, requests[place].id, error)

    def _switch_off(self, drafter: Drafter, request_id: int, error: Exception) -> None:
        log.warning("drafter %s is off for request %d: %s: %s", drafter.name, request_id, type(error).__name__, error)
        text = self._texts.get(request_id)
        if text and drafter in text.active:
            text.active.remove(drafter)


def _at_most(request: DraftRequest, most: int) -> DraftRequest:
    """The request for so many drafts."""
    return request if request.most == most else replace(request, most=most)
