"""The tail of chi-square, and a test of counts whose false alarms and power are what it says they are."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from outrider.certify import statistics
from outrider.certify.statistics import chi_square_tail, critical_value, draws_for, fit, merge, noncentral_tail

LEVEL = 1e-8


@pytest.mark.parametrize(
    ("x", "freedom", "tail"),
    [  # tables of the upper quantiles of chi-square
        (3.841459, 1, 0.05),
        (10.827566, 1, 0.001),
        (5.991465, 2, 0.05),
        (20.515006, 5, 0.001),
        (18.307038, 10, 0.05),
        (35.563171, 26, 0.1),
        (124.342113, 100, 0.05),
        (553.126835, 500, 0.05),
    ],
)
def test_the_tail_is_that_of_the_tables(x, freedom, tail):
    assert chi_square_tail(x, freedom) == pytest.approx(tail, rel=2e-4)


@pytest.mark.parametrize("freedom", [1, 2, 3, 8, 26, 41])
def test_the_tail_is_the_integral_of_the_density(freedom):
    """Far out, where a certificate decides: Simpson's rule, which shares nothing with the finite sum."""
    for start in (1.0, 20.0, 90.0):
        x = np.linspace(start, start + 200, 200_001)
        log_density = (freedom / 2 - 1) * np.log(x) - x / 2 - freedom / 2 * math.log(2) - math.lgamma(freedom / 2)
        y = np.exp(log_density)
        integral = (x[1] - x[0]) / 3 * (y[0] + 4 * y[1::2].sum() + 2 * y[2:-1:2].sum() + y[-1])
        assert chi_square_tail(start, freedom) == pytest.approx(integral, rel=1e-6)


def test_the_noncentral_tail_is_that_of_shifted_normals():
    normal = np.random.default_rng(1).normal(size=(200_000, 5))
    normal[:, 0] += 3
    squares = (normal**2).sum(axis=1)
    for x in (5.0, 14.0, 30.0):
        share = (squares > x).mean()
        assert noncentral_tail(x, 5, 9.0) == pytest.approx(share, abs=5 * math.sqrt(share / 200_000))
    assert noncentral_tail(14.0, 5, 0.0) == pytest.approx(chi_square_tail(14.0, 5), rel=1e-12)


def test_critical_value_and_draws_are_inverses():
    assert chi_square_tail(critical_value(26, LEVEL), 26) == pytest.approx(LEVEL, rel=1e-6)
    draws = draws_for(0.05, 26, LEVEL)
    assert statistics.smallest_bias(draws, 26, LEVEL) == pytest.approx(0.05, rel=1e-3)


def outcomes(draws, bins):
    """All ways in which so many draws can fall into bins."""
    if bins == 1:
        yield (draws,)
        return
    for first in range(draws + 1):
        for rest in outcomes(draws - first, bins - 1):
            yield (first, *rest)


def exact_alarms(p, draws, statistic):
    """Probability that the statistic of an honest count exceeds what it should once in 1 / LEVEL."""
    critical = critical_value(len(p) - 1, LEVEL)
    total = 0.0
    for counts in outcomes(draws, len(p)):
        if statistic(counts, p) >= critical:
            chance = math.lgamma(draws + 1) - sum(math.lgamma(n + 1) for n in counts)
            total += math.exp(chance + sum(n * math.log(x) for n, x in zip(counts, p, strict=True)))
    return total


def g(counts, p):
    return fit(dict(enumerate(counts)), dict(enumerate(p)), LEVEL).statistic


def pearson(counts, p):
    draws = sum(counts)
    return sum((n - draws * x) ** 2 / (draws * x) for n, x in zip(counts, p, strict=True))


SCARCE = [([0.1, 0.9], 50), ([0.01, 0.99], 500), ([0.05, 0.15, 0.8], 100), ([0.02, 0.02, 0.96], 250)]
"""Laws and numbers of draws where an outcome is expected five times, the least that is not merged."""


@pytest.mark.parametrize(("p", "draws"), SCARCE)
def test_false_alarms_are_as_rare_as_promised(p, draws):
    """Exactly, over all possible counts."""
    assert exact_alarms(p, draws, g) <= LEVEL


def test_pearsons_statistic_would_not_do():
    """The control: the same oracle convicts it, by orders of magnitude."""
    assert all(exact_alarms(p, draws, pearson) > 50 * LEVEL for p, draws in SCARCE)


@pytest.mark.parametrize("shape", ["spread", "narrow"])
def test_a_bias_of_the_stated_size_is_seen(shape):
    """Power, by simulation: many outcomes a little off, or two of them more so. Half the bias is mostly missed."""
    p = np.full(27, 1 / 27)
    bias = 0.1
    draws = draws_for(bias, 26, LEVEL)
    moved = np.zeros(27)
    if shape == "spread":
        moved[:13], moved[13:26] = bias / 13, -bias / 13
    else:
        moved[:3], moved[3:6] = bias / 3, -bias / 3
    rng = np.random.default_rng(2)

    def seen(law):
        verdicts = [
            not fit(dict(enumerate(rng.multinomial(draws, law).tolist())), dict(enumerate(p)), LEVEL).holds
            for _ in range(100)
        ]
        return sum(verdicts)

    assert seen(p + moved) >= 97
    if shape == "spread":
        assert seen(p + moved / 2) < 50
    assert seen(p) == 0


def test_rare_outcomes_are_merged():
    law = {"a": 0.6, "b": 0.3, "c": 0.05, "d": 0.03, "e": 0.02}
    assert merge(law, 0.05) == [("a",), ("b",), ("c",), ("d", "e")]
    assert merge(law, 0.1) == [("a",), ("b",), ("c", "d", "e")]
    assert merge(law, 0.34) == [("a",), ("b", "c", "d", "e")]  # what is left joins the last group
    assert sorted(x for group in merge(law, 0.2) for x in group) == sorted(law)


def test_what_cannot_happen_must_not():
    law = {0: 0.5, 1: 0.5, 2: 0.0}
    assert fit({0: 500, 1: 500}, law, LEVEL).holds
    verdict = fit({0: 500, 1: 500, 2: 1}, law, LEVEL)
    assert (verdict.holds, verdict.impossible) == (False, 1)
    assert not fit({0: 500, 1: 500, "unheard of": 1}, law, LEVEL).holds


def test_a_single_outcome():
    verdict = fit({0: 460}, {0: 1.0}, LEVEL)
    assert verdict.holds
    assert verdict.smallest_bias == pytest.approx(0.01, rel=0.01)  # 0.99 to the 460 is a hundredth


def test_honest_counts_have_honest_p_values():
    """Uniform over many tests: a tenth of them below a tenth."""
    rng = np.random.default_rng(3)
    law = dict(enumerate(rng.dirichlet([0.8] * 27)))
    values = []
    for _ in range(500):
        counts = Counter(rng.choice(27, size=2000, p=list(law.values())).tolist())
        values.append(fit(counts, law, LEVEL).p_value)
    for share in (0.1, 0.5, 0.9):
        assert np.mean(np.array(values) < share) == pytest.approx(share, abs=0.06)


def test_nothing_counted_is_an_error():
    with pytest.raises(ValueError, match="nothing was counted"):
        fit({}, {0: 1.0}, LEVEL)
