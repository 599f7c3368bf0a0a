"""From the steps of one drafter to its speed at every length, by Leviathan et al. 2023 (arXiv 2211.17192, theorem 3.8).

    S(k) = tokens per step / time per step = (1 + sum over j <= k of P(at least j accepted)) / E[c m + v(m + 1)]

The paper takes one acceptance rate alpha for all positions, which makes the tokens (1 - alpha^(k+1)) / (1 - alpha); k
drafted tokens in every step; and v = 1. Here the rate at each position, the number m of tokens that the drafter has to
say when it may say k, and the times c and v are measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.policy.costs import Costs


@dataclass(frozen=True, slots=True)
class Steps:
    """What became of a drafter that was asked for `most` tokens in every step.

    outcomes  (drafted, accepted) -> number of steps.
    """

    most: int
    outcomes: Mapping[tuple[int, int], int]

    @property
    def count(self) -> int:
        """All steps."""
        return sum(self.outcomes.values())

    @property
    def spoke(self) -> float:
        """Share of the steps in which it drafted anything."""
        return sum(n for (drafted, _), n in self.outcomes.items() if drafted) / max(self.count, 1)

    @property
    def alpha(self) -> float:
        """Of the drafted tokens whose turn came, the share that was accepted."""
        accepted = sum(accepted * n for (_, accepted), n in self.outcomes.items())
        refused = sum(n for (drafted, accepted), n in self.outcomes.items() if accepted < drafted)
        return accepted / max(accepted + refused, 1)

    @property
    def acceptance(self) -> tuple[float, ...]:
        """The same at each position, as far as any token's turn came."""
        rates = []
        for position in range(self.most):
            turns = sum(n for (drafted, accepted), n in self.outcomes.items() if drafted > position <= accepted)
            if not turns:
                break
            rates.append(self._reached(position + 1) / turns)
        return tuple(rates)

    def tokens(self, k: int) -> float:
        """Tokens per step, had it been asked for k."""
        return 1 + sum(self._reached(j) for j in range(1, k + 1)) / max(self.count, 1)

    def time(self, k: int, c: float, costs: Costs, context: int) -> float:
        """Time per step, in plain ones, had it been asked for k."""
        if not self.count:
            return 1.0
        total = 0.0
        for (drafted, _), n in self.outcomes.items():
            rows = min(drafted, k)
            total += n * (c * rows + costs.v(rows + 1, context))
        return total / self.count

    def _reached(self, position: int) -> int:
        """Steps in which the token at that position, counted from 1, was accepted."""
        return sum(n for (_, accepted), n in self.outcomes.items() if accepted >= position)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A drafter's figures.

    c         time of one drafted token, in plain steps.
    context   tokens before a step, on average.
    speed_ups  predicted, at lengths 0, 1, 2, ...
    """

    drafter: str
    c: float
    context: int
    steps: Steps
    speed_ups: tuple[float, ...]

    @classmethod
    def make(cls, drafter: str, c: float, context: int, steps: Steps, costs: Costs) -> Forecast:
        """Predicts."""
        lengths = range(1, steps.most + 1)
        predicted = (steps.tokens(k) / steps.time(k, c, costs, context) for k in lengths)
        return cls(drafter, c, context, steps, (1.0, *predicted))

    @property
    def best(self) -> int:
        """The length with the greatest speed-up; 0: better not at all."""
        return max(range(len(self.speed_ups)), key=self.speed_ups.__getitem__)

    @property
    def speed_up(self) -> float:
        """That speed-up; 1 for none."""
        return self.speed_ups[self.best]

    def reason(self, costs: Costs) -> str:
        """Why, in one sentence."""
        k, alpha = self.best, f"{self.steps.alpha:.0%} acceptance"
        if k:
            often = "" if self.steps.spoke > 0.95 else f" in the {self.steps.spoke:.0%} of steps where it drafts"
            price = f", {self.c:.2f} steps a token" if self.c >= 0.02 else ""
            return f"v({k + 1}) = {costs.v(k + 1, self.context):.2f}{price} and {alpha}{often}: {self.speed_up:.2f}x"
        if self.steps.spoke < 0.02:
            return f"no gain: it drafts in {self.steps.spoke:.0%} of the steps"
        first = self.c + costs.v(2, self.context) - 1
        if self.c > first / 2:
            return f"no gain: a drafted token costs {self.c:.0%} of a target step, at {alpha}"
        return f"no gain: one more row costs {first:.0%} of a target step, at {alpha}"
