"""From the steps of one drafter to its speed at every length, by Leviathan et al. 2023 (arXiv 2211.17192, theorem 3.8).

    S(k) = tokens per step / time per step = (1 + sum over j <= k of P(at least j accepted)) / E[c m + v(m + 1) + h]

The paper takes one acceptance rate alpha for all positions, which makes the tokens (1 - alpha^(k+1)) / (1 - alpha); k
drafted tokens in every step; v = 1; and no time beside passes. Here the rate at each position, the number m of tokens
that the drafter has to say when it may say k, the times c and v, and the time h beside passes are measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.policy.costs import Costs


@dataclass(frozen=True, slots=True)
class Beside:
    """Seconds that a step takes beside passes, mostly Python's: a plain one; one in which the drafter is asked and has
    nothing to say; one with drafts."""

    plain: float = 0.0
    silent: float = 0.0
    drafted: float = 0.0


_NOTHING = Beside()


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

    @property
    def tokens(self) -> float:
        """Per step."""
        return 1 + sum(accepted * n for (_, accepted), n in self.outcomes.items()) / max(self.count, 1)

    def time(self, c: float, costs: Costs, context: int, beside: Beside) -> float:
        """Per step, in plain ones."""
        plain = costs.plain(context)
        total = 0.0
        for (drafted, _), n in self.outcomes.items():
            rest = beside.drafted if drafted else beside.silent
            total += n * (plain * (c * drafted + costs.v(drafted + 1, context)) + rest)
        return total / self.count / (plain + beside.plain) if self.count else 1.0

    def lengths(self) -> list[Steps]:
        """As if it had been asked for 1, 2, .. `most` tokens in these same steps, of a chain each."""
        cuts = []
        for k in range(1, self.most + 1):
            outcomes: Counter[tuple[int, int]] = Counter()
            for (drafted, accepted), n in self.outcomes.items():
                outcomes[min(drafted, k), min(accepted, k)] += n
            cuts.append(Steps(k, outcomes))
        return cuts

    def _reached(self, position: int) -> int:
        """Steps in which the token at that position, counted from 1, was accepted."""
        return sum(n for (_, accepted), n in self.outcomes.items() if accepted >= position)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A drafter's figures.

    c         time of one drafted token, in one-row passes.
    context   tokens before a step, on average.
    steps     at the greatest length.
    speed_ups  predicted, at lengths 0, 1, 2, ...
    """

    drafter: str
    c: float
    context: int
    steps: Steps
    speed_ups: tuple[float, ...]
    beside: Beside

    @classmethod
    def make(
        cls, drafter: str, c: float, context: int, lengths: Sequence[Steps], costs: Costs, beside: Beside = _NOTHING
    ) -> Forecast:
        """Predicts from the steps at lengths 1, 2, ..."""
        predicted = (steps.tokens / steps.time(c, costs, context, beside) for steps in lengths)
        return cls(drafter, c, context, lengths[-1], (1.0, *predicted), beside)

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
