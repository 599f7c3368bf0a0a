"""Worlds in which the best that any policy can do is known, and a policy's speed in them; no model takes part.

In a world each drafted token is accepted with the same probability, whatever was drafted before; so a fixed length is
best, and Leviathan et al. 2023 (arXiv 2211.17192, equation 1 and theorem 3.8, with v for the real cost of rows) say
which.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider.drafters.base import Drafter, DraftRequest, Observation, RequestView
from outrider.policy.controller import Controller
from outrider.policy.costs import Costs
from outrider.speculation import AUTO, Speculation
from outrider.types import EMPTY, Proposal

MOST = 8

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

    @property
    def claim(self) -> float:
        """What the drafter says of each token."""
        return self.alpha if self.says is None else self.says

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
                Controller([Claiming("it", self.claim, self.c)], self.costs),
                self.costs,
                {"it": self.alpha},
                {"it": self.c},
                seed=seed,
                speculation=Speculation(length=length),
            )[0].speed
            for seed in range(texts)
        ]


class Claiming(Drafter):
    """Proposes as much as it may, and claims that each token is accepted with the same probability."""

    def __init__(self, name: str, says: float, cost: float = 0.0) -> None:
        self.name, self.cost, self.expected, self._says = name, cost, (says,), says

    def begin(self, request: RequestView) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [Proposal.chain([0] * r.most, self.name, [self._says] * r.most) if r.most else EMPTY for r in requests]

    def end(self, request_id: int) -> None:
        pass


@dataclass
class Outcome:
    """tokens that were written, the work that took in plain steps, and how many were drafted in each step."""

    tokens: int = 0
    work: float = 0.0
    drafted: tuple[int, ...] = ()

    @property
    def speed(self) -> float:
        """Over plain decoding."""
        return self.tokens / self.work


def play(
    policy: Drafter,
    costs: Costs,
    alphas: dict[str, float],
    prices: dict[str, float],
    *,
    batch: int = 1,
    length: int = 400,
    seed: int = 0,
    speculation: Speculation = AUTO,
) -> list[Outcome]:
    """Write texts of that length together; by drafter's name, how much is accepted and what a drafted token takes.

    Work is shared out by rows: a plain step of the batch in equal parts, what drafts add to it to whom they are for.
    """
    chance = random.Random(seed)
    texts = {i: [0, 0] for i in range(batch)}
    outcomes = {i: Outcome(1, 1.0) for i in range(batch)}
    for i, text in texts.items():
        policy.begin(RequestView(id=i, tokens=text, prompt_length=1, speculation=speculation))
        policy.observe(Observation(id=i, committed=(0,), proposal=EMPTY, path=()))
    request = DraftRequest(id=0, tokens=(), prompt_length=1, most=0, speculation=speculation)
    plain = costs.v(batch) / batch
    while any(outcome.tokens < length for outcome in outcomes.values()):
        limit = MOST if speculation.length is None else speculation.length
        most = [min(limit, max(length - outcome.tokens - 1, 0)) for outcome in outcomes.values()]
        requests = [replace(request, id=i, tokens=texts[i], most=most[i], rows=batch) for i in texts]
        proposals = policy.propose(requests)
        rows = sum(map(len, proposals))
        each = (costs.v(batch + rows) - costs.v(batch)) / rows if rows else 0.0
        for i, proposal in enumerate(proposals):
            accepted = 0
            while accepted < len(proposal) and chance.random() < alphas[proposal.drafter]:
                accepted += 1
            extra = len(proposal) * (each + prices.get(proposal.drafter, 0.0) * plain) / plain
            outcomes[i].work += 1 + extra
            outcomes[i].tokens += accepted + 1
            outcomes[i].drafted += (len(proposal),)
            texts[i] += [0] * (accepted + 1)
            policy.observe(
                Observation(id=i, committed=(0,) * (accepted + 1), proposal=proposal, path=tuple(range(accepted)))
            )
    for i in texts:
        policy.end(i)
    return list(outcomes.values())
