"""The law of sampled texts, by exact enumeration: all 27 strings of three tokens from a vocabulary of three, counted
through the real engine (its cache and its rollback included) and compared with the target's own law by chi-square.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import cache

import numpy as np
import pytest

from outrider.models.base import KVShape
from outrider.request import Request
from outrider.sampling import SamplingParams, distribution
from outrider.types import ROOT, Outcome, Proposal
from tests.scripted import ScriptedModel, drain, make_engine

VOCABULARY, LENGTH, PROMPT = 3, 3, (1,)
RUNS = 20_000
CRITICAL = 77.0
"""Chi-square on 26 degrees of freedom exceeds this once in 800,000 honest tests (Wilson and Hilferty: 1.2e-6)."""


def random_law(seed):
    """A distribution per path, skewed enough that target and drafter disagree."""

    @cache
    def law(path):
        return np.random.default_rng([seed, *path]).dirichlet([0.8] * VOCABULARY)

    return law


TARGET, DRAFTER = random_law(1), random_law(2)


@cache
def logits(path):
    return np.log(TARGET(path)).astype(np.float32)


def drawn_chain(rng):
    """Two tokens, each drawn from q after the one before."""

    def draft(request):
        tokens, laws = [], []
        for _ in range(min(2, request.most)):
            laws.append(DRAFTER((*request.tokens, *tokens)))
            tokens.append(int(rng.choice(VOCABULARY, p=laws[-1])))
        return Proposal.chain(tokens, "scripted", q=laws)

    return draft


def chosen_chain(rng):
    """Two tokens without chance: the drafter's most probable ones (B01)."""

    def draft(request):
        tokens = []
        for _ in range(min(2, request.most)):
            tokens.append(int(DRAFTER((*request.tokens, *tokens)).argmax()))
        return Proposal.chain(tokens, "scripted")

    return draft


def chosen_as_if_drawn(rng):
    """The fault B01: chosen tokens with the softmax they were the most probable ones of as q."""
    chosen = chosen_chain(rng)

    def draft(request):
        tokens = chosen(request).tokens
        laws = [DRAFTER((*request.tokens, *tokens[:i])) for i in range(len(tokens))]
        return Proposal.chain(tokens, "scripted", q=laws)

    return draft


def drawn_tree(rng):
    """Two siblings drawn without replacement, stored before the child of the second."""

    def draft(request):
        q = DRAFTER(tuple(request.tokens))
        first = int(rng.choice(VOCABULARY, p=q))
        rest = np.where(np.arange(VOCABULARY) == first, 0.0, q)
        rest /= rest.sum()
        second = int(rng.choice(VOCABULARY, p=rest))
        child_law = DRAFTER((*request.tokens, second))
        child = int(rng.choice(VOCABULARY, p=child_law))
        tree = Proposal((first, second, child), (ROOT, ROOT, 1), "scripted", (1.0,) * 3, (q, rest, child_law))
        return tree.cut(request.most)

    return draft


def chi_square(draft, acceptance="rejection", fault=None, runs=RUNS, max_tokens=LENGTH + 1):
    """Sum of (observed - expected)^2 / expected over the strings of the first three tokens of `runs` texts."""
    model = ScriptedModel(logits, vocabulary=VOCABULARY, kv_shape=KVShape(1, 1, 1))
    engine = make_engine(model, draft(np.random.default_rng(5)), blocks=32, max_batch=32)
    requests = [
        Request(PROMPT, SamplingParams(temperature=1.0, seed=seed, acceptance=acceptance, max_tokens=max_tokens))
        for seed in range(runs)
    ]
    for start in range(0, runs, 500):  # a short queue, since every step checks all of it
        for request in requests[start : start + 500]:
            engine.submit(request)
            if fault is not None:
                request.verify = fault(request.verify)
        drain(engine)
    counts = Counter(tuple(request.output[:LENGTH]) for request in requests)
    total = 0.0
    for text in itertools.product(range(VOCABULARY), repeat=LENGTH):
        p = math.prod(TARGET((*PROMPT, *text[:i]))[token] for i, token in enumerate(text))
        total += (counts[text] - runs * p) ** 2 / (runs * p)
    return total


@pytest.mark.parametrize("draft", [drawn_chain, chosen_chain, drawn_tree])
def test_rejection_keeps_the_targets_law(draft):
    """B01, B08, B11, B15: a chain that is drawn, one that is chosen, and a tree."""
    assert chi_square(draft) < CRITICAL


def test_coupled_keeps_the_targets_law():
    """B08: the draw that was compared is the one that is emitted."""
    assert chi_square(chosen_chain, acceptance="coupled") < CRITICAL


def rows_off_by_one(verify):
    """The rejected row's successor decides (B11)."""
    return lambda logits, proposal, params, noise: verify(np.roll(logits, -1, axis=0), proposal, params, noise)


def redrawn_from_p(verify):
    """After a rejection the token is drawn from p, not from what q left of it (B08)."""

    def faulty(logits, proposal, params, noise):
        outcome = verify(logits, proposal, params, noise)
        node = outcome.path[-1] if outcome.path else ROOT
        if not proposal.children(node):
            return outcome
        law = distribution(logits[1 + node], params)
        return Outcome(outcome.path, law.draw(np.random.default_rng(noise.seed).random()))

    return faulty


@pytest.mark.parametrize(
    ("draft", "fault"), [(drawn_chain, rows_off_by_one), (drawn_chain, redrawn_from_p), (chosen_as_if_drawn, None)]
)
def test_a_planted_fault_breaks_the_law(draft, fault):
    """Negative controls: each is seen with a quarter of the runs."""
    assert chi_square(draft, fault=fault, runs=RUNS // 4) > CRITICAL
