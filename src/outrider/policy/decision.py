"""The decision of one step: of what is offered to each request, the best, cut to what pays in this batch.

It depends on nothing but what it is given: estimates, costs and what the texts have taught so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from operator import itemgetter
from typing import NamedTuple

from outrider.drafters.base import Drafter, DraftRequest
from outrider.kernels._drafting import allocate
from outrider.policy.prices import Prices
from outrider.policy.text import Text
from outrider.types import DECLINED, EMPTY, Proposal

_CONTEXTS = 64  # costs are looked up for multiples of so many tokens
_DRAWING = ("rejection", "block")  # the rules that a cut must not look at draws for


class Offer(NamedTuple):
    """A drafter's proposal to one request.

    gains  of its nodes, the greatest first.
    order  these nodes, parents before their children; None: in their own order.
    price  what drafting it has cost, in one-row passes.
    whole  it must not be cut.
    """

    drafter: Drafter
    proposal: Proposal
    gains: Sequence[float]
    order: Sequence[int] | None
    price: float
    whole: bool


class Decision:
    """Collects offers for the requests of a step, then cuts them.

    prefill, lookup  what a row of a prompt costs, and to ask the free drafters, in one-row passes.

    context, rows, drafted  tokens before the step; rows of the pass, without drafts; how many these are.
    """

    __slots__ = (
        "_added", "_asking", "_count", "_declined", "_offers", "_prefill", "_prices", "_requests", "_rooms", "_share",
        "_texts", "_values", "_worth", "context", "drafted", "rows",
    )  # fmt: skip

    def __init__(
        self,
        requests: Sequence[DraftRequest],
        texts: Sequence[Text],
        prices: Prices,
        prefill: float,
        lookup: float,
    ) -> None:
        self._requests = requests
        self._texts = texts
        self._prices = prices
        self._prefill = prefill
        count = self._count = len(requests) + requests[0].asleep  # of the step
        self.rows = requests[0].rows
        self.drafted = 0
        self._asking: list[int] = []
        self._declined: list[bool] = []  # somebody has something, or is not asked as it would not have paid
        rates, most, longest = 0.0, 0, 0
        for place, text in enumerate(texts):
            if asked := text.wakes():
                self._asking.append(place)
            self._declined.append(not asked and bool(text.active))
            rates += text.ledger.rate
            most += requests[place].most
            longest = max(longest, len(requests[place].tokens))
        self.context = longest // _CONTEXTS * _CONTEXTS
        self._added = prices.drafts(self.rows, self.context, most)
        plain = 1.0 if count == 1 else 1.0 + prices.added(1, self.context, count - 1)[-1]
        self._share = plain / count  # of a request in a plain step, in one-row passes
        # Tokens in the time of a one-row pass; who sleeps writes at a rate of 1.
        self._worth = (rates + requests[0].asleep) / (self._share * count)
        row = prices.added(self.rows, self.context, 1)[-1]
        for place in self._asking:
            texts[place].row, texts[place].lookup = row / self._share, lookup / self._share
        self._rooms = [text.ledger.room * self._share for text in texts]
        self._offers: list[Offer | None] = [None] * len(texts)
        self._values = [0.0] * len(texts)

    def asks(self, drafter: Drafter) -> list[int]:
        """The requests that a free drafter is to be asked for: even where nothing may be risked, it teaches."""
        return [i for i in self._asking if self._wants(i, drafter)]

    def plans(self, drafters: Sequence[Drafter]) -> dict[Drafter, dict[int, int]]:
        """How many tokens which of the drafters that are not free, or draw, is to propose for which requests.

        Each request is planned for at most once, and only where that promises more than what it has been offered.
        What is drawn stays whole, so rows are priced as they come beside those that are planned before.
        """
        plans: dict[Drafter, dict[int, int]] = {}
        before = sum([len(offer.proposal) for offer in self._offers if offer and offer.whole])
        for i, request in enumerate(self._requests):
            if not self._texts[i].plans():
                continue
            best: tuple[float, Drafter | None, int] = (self._values[i], None, 0)
            for drafter in drafters:
                if not self._wants(i, drafter):
                    continue
                if request.speculation.length is not None:
                    best = inf, drafter, request.most
                    break
                if self._rooms[i] < 0:
                    continue
                gains = self._texts[i].acceptance(drafter).gains(request.most)
                price = self._price(drafter)
                added = [time + price * j for j, time in enumerate(self._beside(before, request.most))]
                value, _, most = self._alone(i, gains, added, drafter)
                value -= self._reading(i, drafter, added[most])
                best = max(best, (value, drafter, most), key=itemgetter(0))
            _, chosen, most = best
            self._texts[i].planned(chosen)
            if chosen is None:
                self._declined[i] = self._declined[i] or any(self._wants(i, drafter) for drafter in drafters)
            else:
                self._declined[i] = False
                plans.setdefault(chosen, {})[i] = most
                before += most
                text = self._texts[i]
                text.read(chosen, len(request.tokens), self._unread(i, chosen) / self._share)
                self._rooms[i] = text.ledger.room * self._share
        return plans

    def offer(self, place: int, drafter: Drafter, proposal: Proposal) -> None:
        """What a drafter proposes to a request: if free, it has to be better than others; if planned, it is taken.

        Nodes that were drawn, and are judged by more than equality, must have been planned, and stay whole.
        """
        if not proposal.tokens:
            return
        request, text, planned = self._requests[place], self._texts[place], drafter.cost or drafter.draws
        drawn = request.params.rule in _DRAWING and any(q is not None for q in proposal.q)
        if drawn and not planned:
            return
        self._declined[place] = True
        if len(proposal.tokens) > request.most:
            proposal = proposal.cut(request.most)
        calibration = text.calibration(drafter)
        calibration.hear(proposal.tokens, proposal.parents, proposal.estimates)
        if not planned:
            text.heard.append(calibration)
        price = len(proposal) * self._price(drafter) if planned else 0.0
        if drawn or request.speculation.length is not None:
            self._offers[place] = Offer(drafter, proposal, (), None, price, whole=True)
            return
        room, least = self._rooms[place], -inf if planned else self._values[place]
        weighed = calibration.weigh(room, self._added, self._worth, least)
        if weighed is not None:
            value, gains, order = weighed
            self._offers[place] = Offer(drafter, proposal, gains, order, price, whole=False)
            self._values[place] = inf if planned else value

    def proposals(self) -> list[Proposal]:
        """The best offer of each request, cut to what pays; the texts are told what that costs."""
        proposals = [DECLINED if declined else EMPTY for declined in self._declined]
        if not any(self._offers):
            return proposals
        gains, rooms, starts, fixed = [], [], [], 0
        for offer, room in zip(self._offers, self._rooms, strict=True):
            starts.append(fixed)
            gains.append(offer.gains if offer else ())
            rooms.append(room - offer.price if offer else room)
            if offer and offer.whole:
                fixed += len(offer.proposal)
        added = self._added
        left = [time - added[fixed] for time in added[fixed:]] if fixed else added
        counts, times = allocate(gains, rooms, left, self._worth)
        for place, offer in enumerate(self._offers):
            if not offer:
                continue
            count, start = counts[place], starts[place]
            whole = len(offer.proposal) if offer.whole else 0
            time = times[place] + added[start + whole] - added[start]
            self._texts[place].draft(offer.drafter, (time + offer.price) / self._share)
            if count + whole:
                self.drafted += count + whole
                proposal = offer.proposal
                proposals[place] = proposal.keep(offer.order[:count]) if offer.order else proposal.cut(count + whole)
        return proposals

    def _beside(self, others: int, most: int) -> Sequence[float]:
        """What 0 .. `most` drafts add at most if so many others are planned, of which not all need come."""
        added = self._added
        if not others:
            return added[: most + 1]
        return [max([added[start + j] - added[start] for start in range(others + 1)]) for j in range(most + 1)]

    def _wants(self, place: int, drafter: Drafter) -> bool:
        """Whether a request may ask the drafter."""
        request, text = self._requests[place], self._texts[place]
        if request.most <= 0 or drafter not in text.active:
            return False
        return self._offers[place] is None or request.speculation.length is None

    def _unread(self, place: int, drafter: Drafter) -> float:
        """What the drafter has to read of a text before it drafts costs, in one-row passes."""
        unread = self._texts[place].unread(drafter, len(self._requests[place].tokens))
        return unread * self._prices.token(drafter) * self._prefill

    def _reading(self, place: int, drafter: Drafter, drafting: float) -> float:
        """The part of this that the step has to bring, in tokens, if the drafter is used for as long again as the text
        has been written for; infinite where reading and then drafting are more than may be risked."""
        cost, ledger = self._unread(place, drafter), self._texts[place].ledger
        if cost and not ledger.can_read((cost + drafting) / self._share):
            return inf
        return self._worth * cost / max(1, ledger.tokens)

    def _price(self, drafter: Drafter) -> float:
        """Of one drafted token: passes of a drafter take their rows together, as those of the target do."""
        return self._prices.token(drafter) * self._share

    def _alone(
        self, place: int, gains: Sequence[float], added: Sequence[float], drafter: Drafter
    ) -> tuple[float, Drafter, int]:
        """What an offer would bring if there were no other: value, whose it is, how many rows."""
        (count,), _ = allocate([gains], [self._rooms[place]], added, self._worth)
        return sum(gains[:count]) - self._worth * added[count], drafter, count
