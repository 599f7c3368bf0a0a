"""The statistics of the certificate: a likelihood-ratio test of counts, and what it would have seen.

The statistic is G = 2 sum(observed * log(observed / expected)), not Pearson's: where one false alarm in a hundred
million tests is to mean that, Pearson's tail is heavier than chi-square's by orders of magnitude, and G's is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np

Outcome = TypeVar("Outcome", bound=Hashable)

FAMILY_ALARMS = 1e-6
"""Probability that a certificate of an honest engine reports any bias at all."""

POWER = 0.99
"""Probability with which a bias of the stated size is reported."""

LEAST_EXPECTED = 5.0
"""Outcomes rarer than this, in expected counts, are merged before the test."""


UNDRAFTED = "no draft was accepted: nothing is shown"
"""What is wrong with a test in which speculation took no part."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Counts against the law that they should have.

    draws          how many outcomes were counted.
    bins           outcomes that the test tells apart, after merging rare ones; degrees of freedom plus 1.
    statistic      G with Williams' correction; chi-square with bins - 1 degrees of freedom if the law holds.
    p_value        probability of a statistic as large, or larger, if the law holds.
    level          the test reports a bias where p_value is below this.
    smallest_bias  total variation distance from the law, or more, that is reported with probability POWER.
    impossible     outcomes counted that have probability 0: any at all is a bias.
    """

    draws: int
    bins: int
    statistic: float
    p_value: float
    level: float
    smallest_bias: float
    impossible: int

    @property
    def holds(self) -> bool:
        """Whether no bias is seen."""
        return self.p_value >= self.level and self.impossible == 0

    @property
    def in_words(self) -> str:
        """The verdict in a few words."""
        figures = f"{self.draws:,} draws, {self.bins} outcomes, G = {self.statistic:.1f}, p = {self.p_value:.2g}"
        return f"{figures}, {self.impossible:,} impossible" if self.impossible else figures


def fit(counts: Mapping[Outcome, int], law: Mapping[Outcome, float], level: float) -> Fit:
    """Test counts of outcomes against their probabilities (of sum 1; outcomes not named have none).

    G as in Sokal and Rohlf, "Biometry", divided by the factor of Williams 1976 (Biometrika 63), which makes its mean
    that of chi-square to the order 1/n. Raises ValueError if nothing was counted.
    """
    draws = sum(counts.values())
    if draws == 0:
        raise ValueError("fit: nothing was counted")
    merged = merge({outcome: p for outcome, p in law.items() if p > 0}, LEAST_EXPECTED / draws)
    p = np.array([sum(law[outcome] for outcome in group) for group in merged])
    observed = np.array([sum(counts.get(outcome, 0) for outcome in group) for group in merged], float)
    impossible = draws - int(observed.sum())
    expected = p / p.sum() * observed.sum()
    seen = observed > 0
    g = 2 * float((observed[seen] * np.log(observed[seen] / expected[seen])).sum())
    freedom = len(merged) - 1
    if freedom:
        g /= 1 + (float((1 / p).sum()) - 1) / (6 * draws * freedom)
    g = max(g, 0.0)
    return Fit(
        draws=draws,
        bins=len(merged),
        statistic=g,
        p_value=chi_square_tail(g, freedom),
        level=level,
        smallest_bias=smallest_bias(draws, freedom, level),
        impossible=impossible,
    )


def merge(law: Mapping[Outcome, float], least: float) -> list[tuple[Outcome, ...]]:
    """Outcomes in groups of probability `least` or more: each likely one alone, rarer ones together, most likely first.

    What is left over at the end joins the last group.
    """
    groups: list[tuple[Outcome, ...]] = []
    group: list[Outcome] = []
    weight = 0.0
    for outcome in sorted(law, key=lambda outcome: -law[outcome]):
        group.append(outcome)
        weight += law[outcome]
        if weight >= least:
            groups.append(tuple(group))
            group, weight = [], 0.0
    if group:
        groups[-1:] = [(*(groups[-1] if groups else ()), *group)]
    return groups


def chi_square_tail(x: float, freedom: int) -> float:
    """Probability that chi-square with so many degrees of freedom is x or more; 0 degrees: always 0.

    With h = x/2, Q(1, h) = exp(-h), Q(1/2, h) = erfc(sqrt(h)) and, by parts, Q(a + 1, h) = Q(a, h) + exp(-h) h^a / a!:
    a finite sum of positive terms, so its relative precision lasts far into the tail.
    """
    if x <= 0:
        return 1.0
    if freedom == 0:
        return 0.0
    half = x / 2
    a, tail = (0.5, math.erfc(math.sqrt(half))) if freedom % 2 else (1.0, math.exp(-half))
    while a < freedom / 2:
        tail += _poisson(a, half)
        a += 1
    return min(tail, 1.0)


def noncentral_tail(x: float, freedom: int, noncentrality: float) -> float:
    """The same for noncentral chi-square: a mixture of chi-squares with 2 more degrees each, with Poisson weights."""
    half, mean = x / 2, noncentrality / 2
    tail, total = chi_square_tail(x, freedom), 0.0
    for j in range(int(mean + 12 * math.sqrt(mean) + 40)):
        total += _poisson(j, mean) * min(tail, 1.0)
        tail += _poisson(freedom / 2 + j, half)
    return total


@cache
def critical_value(freedom: int, level: float) -> float:
    """What chi-square exceeds with probability `level`."""
    return _root(lambda x: level - chi_square_tail(x, freedom))


@cache
def noncentrality(freedom: int, level: float) -> float:
    """The noncentrality at which a test of that level reports with probability POWER."""
    critical = critical_value(freedom, level)
    return _root(lambda value: noncentral_tail(critical, freedom, value) - POWER)


def smallest_bias(draws: int, freedom: int, level: float) -> float:
    """The total variation distance from the law from which on a bias is reported with probability POWER.

    A law p' has a noncentrality of about 2 n KL(p', p), which by Pinsker's inequality is 4 n TV(p', p)^2 or more:
    no bias of that distance is harder to see. With a single possible outcome, one other is enough.
    """
    if freedom == 0:
        return float(-math.expm1(math.log1p(-POWER) / draws))
    return math.sqrt(noncentrality(freedom, level) / draws) / 2


def draws_for(bias: float, freedom: int, level: float) -> int:
    """How many draws make `bias` the smallest that is reported with probability POWER."""
    return math.ceil(noncentrality(freedom, level) / (4 * bias**2))


def _poisson(k: float, mean: float) -> float:
    """exp(-mean) mean^k / k!, also between integers."""
    return math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) if mean > 0 else float(k == 0)


def _root(rising: Callable[[float], float]) -> float:
    """Where a rising function of a positive number crosses 0, to twelve digits."""
    low, high = 0.0, 1.0
    while rising(high) < 0:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high
