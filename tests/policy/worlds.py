"""Worlds in which the best that any policy can do is known, and a policy's speed in them; no model takes part.

In a world each drafted token is accepted with the same probability, whatever was drafted before; so a fixed length is
best, and Leviathan et al. 2023 (arXiv 2211.17192, equation 1 and theorem 3.8, with v for the real cost of rows) say
which.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from outrider.drafters.base import Drafter, DraftRequest, Observation, RequestView
from outrider.policy.controller import Controller
from outrider.policy.costs import Costs
from outrider.sampling import SamplingParams
from outrider.speculation import AUTO, Speculation
from outrider.types import EMPTY, Proposal

MOST = 8
GREEDY = SamplingParams()
_Q = np.array([0.5, 0.5])  # of a token that is drawn: no policy looks at it

FLAT = Costs((1, 2, 8, 16), (0,), ((1, 1.02, 1.3, 2.15),))
MIDDLE = Costs((1, 2, 4, 8, 16), (0,), ((1, 1.04, 1.3, 2.6, 5.0),))
STEEP = Costs((1, 2, 4, 8, 16), (0,), ((1, 1.7, 2.8, 4.7, 9.0),))
COSTS = {"flat": FLAT, "middle": MIDDLE, "steep": STEEP}
"""This project's kernels where memory is slow and where it is fast, and those of llama.cpp."""


@dataclass(frozen=True)
class World:
    """alpha: how many tokens are accepted. says: what the drafter claims, None: the truth. c: what a token takes."""

    prices: str
    alpha: float
    says: float | None = None
    c: float = 0.0

    @property
    def costs(self) -> Costs:
        """Of rows."""
        return COSTS[self.prices]

    def speed(self, k: int) -> float:
        """Of always drafting k tokens, over plain decoding."""
        tokens = sum(self.alpha**i for i in range(k + 1))
        return tokens / (k * self.c + self.costs.v(k + 1))

    @property
    def best_length(self) -> int:
        """The fixed length with the greatest speed; 0 for none."""
        return max(range(MOST + 1), key=self.speed)

    @property
    def best(self) -> float:
        """That speed."""
        return self.speed(self.best_length)

    def speeds(self, length: int | None = None, texts: int = 4) -> list[float]:
        """Of several texts, each on a policy of its own: at a fixed length, or at what the policy chooses."""
        return [
            play(
                [Claiming("it", self.alpha, self.says, self.c, seed)],
                self.costs,
                speculation=Speculation(length=length),
            )[0].speed
            for seed in range(texts)
        ]


class Claiming(Drafter):
    """Proposes as much as it may; each token is right with probability alpha, and it says that it is with `says`.

    The token at each place of every text is its place, counted from 1; 0 is wrong everywhere.
    """

    def __init__(
        self,
        name: str,
        alpha: float,
        says: float | None = None,
        cost: float = 0.0,
        seed: int = 0,
        *,
        draws: bool = False,
    ) -> None:
        self.name, self.cost, self._alpha, self.draws = name, cost, alpha, draws
        self._says = alpha if says is None else says
        self.expected = (self._says,)
        self._seed = seed
        self._right: dict[int, list[bool]] = {}

    def begin(self, request: RequestView) -> None:
        chance = random.Random(f"{self.name} {self._seed} {request.id}")
        self._right[request.id] = [chance.random() < self._alpha for _ in range(1000)]

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._chain(request) for request in requests]

    def end(self, request_id: int) -> None:
        del self._right[request_id]

    def _chain(self, request: DraftRequest) -> Proposal:
        places = range(len(request.tokens), len(request.tokens) + request.most)
        right = self._right[request.id]
        tokens = [place + 1 if right[place] else 0 for place in places]
        q = [_Q] * len(tokens) if self.draws else None
        return Proposal.chain(tokens, self.name, [self._says] * len(tokens), q) if tokens else EMPTY


@dataclass
class Outcome:
    """A text, prompt included; the work that it took, in plain steps; how many tokens were drafted in each step."""

    text: list[int]
    work: float = 1.0
    drafted: list[int] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """Over plain decoding."""
        return (len(self.text) - 1) / self.work


def play(
    drafters: Sequence[Drafter],
    costs: Costs,
    *,
    batch: int = 1,
    length: int = 400,
    speculation: Speculation = AUTO,
    params: SamplingParams = GREEDY,
) -> list[Outcome]:
    """Write texts of that length together, with a controller of these drafters.

    Work is shared out by rows: a plain step of the batch in equal parts, what drafts add to it to whom they are for.
    """
    policy = Controller(drafters, costs)
    prices = {drafter.name: drafter.cost for drafter in drafters}
    outcomes = [Outcome([1, 2]) for _ in range(batch)]
    for i, outcome in enumerate(outcomes):
        policy.begin(RequestView(id=i, tokens=outcome.text, prompt_length=1, speculation=speculation))
        policy.observe(Observation(id=i, committed=(2,), proposal=EMPTY, path=()))
    limit = MOST if speculation.length is None else speculation.length
    plain = costs.v(batch) / batch
    while any(len(outcome.text) <= length for outcome in outcomes):
        requests = [
            DraftRequest(
                id=i,
                tokens=outcome.text,
                prompt_length=1,
                speculation=speculation,
                params=params,
                most=min(limit, max(length - len(outcome.text), 0)),
                rows=batch,
            )
            for i, outcome in enumerate(outcomes)
        ]
        proposals = policy.propose(requests)
        rows = sum(map(len, proposals))
        each = (costs.v(batch + rows) - costs.v(batch)) / rows if rows else 0.0
        for i, (outcome, proposal) in enumerate(zip(outcomes, proposals, strict=True)):
            place = len(outcome.text)
            accepted = 0
            while accepted < len(proposal) and proposal.tokens[accepted] == place + accepted + 1:
                accepted += 1
            outcome.work += 1 + len(proposal) * (each / plain + prices.get(proposal.drafter, 0.0))
            outcome.drafted.append(len(proposal))
            committed = tuple(range(place + 1, place + accepted + 2))
            outcome.text += committed
            policy.observe(Observation(id=i, committed=committed, proposal=proposal, path=tuple(range(accepted))))
    for i in range(batch):
        policy.end(i)
    return outcomes
