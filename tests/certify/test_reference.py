"""The plain sampling rules of the certificate agree with the fast ones: two programs that share no code."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.certify import reference
from outrider.sampling import History, SamplingParams, adjusted, distribution

CASES = [
    {},
    {"temperature": 0.3},
    {"top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.1},
    {"top_k": 8, "top_p": 0.8, "min_p": 0.05, "temperature": 1.7},
    {"logit_bias": {3: 2.5, 7: -100.0}},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.7, "frequency_penalty": 0.4},
    {"repetition_penalty": 0.8, "frequency_penalty": -0.5, "logit_bias": {1: 1.0}, "top_p": 0.9},
]


def laws(values, seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, 20).astype(np.float32)
    logits[rng.integers(20)] = -np.inf
    prompt, output = rng.integers(0, 20, 4).tolist(), rng.integers(0, 20, 6).tolist()
    params = SamplingParams(**{"temperature": 1.0, **values})
    history = History([*prompt, *output], len(prompt))
    fast = distribution(adjusted(logits, params, history), params).dense(20)
    return fast, reference.law(logits, params, prompt, output)


@pytest.mark.parametrize("values", CASES, ids=str)
def test_both_say_the_same(values):
    for seed in range(30):
        fast, plain = laws(values, seed)
        assert fast == pytest.approx(plain, abs=2e-6)


def test_another_rule_is_another_law():
    """The control: the comparison tells the cases apart."""
    for values in CASES[1:]:
        assert any(laws(values, seed)[0] != pytest.approx(laws({}, seed)[1], abs=2e-6) for seed in range(30))


def test_ties_go_to_the_lowest_ids():
    logits = np.zeros(6, np.float32)
    assert reference.law(logits, SamplingParams(temperature=1.0, top_k=2), (), ()).tolist() == [0.5, 0.5, 0, 0, 0, 0]
