"""Block verification keeps the target's law, and accepts more than rejection: exactly, with no chance involved."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import NumericError
from outrider.randomness import Noise, Purpose
from outrider.sampling import Distribution, distribution
from outrider.types import EMPTY, ROOT, DoubleArray, FloatArray, Outcome, Proposal
from outrider.verify import base, block, rejection
from outrider.verify.block import verify
from tests.verify.laws import NEW, WARM, Text, cases, drawn, is_path, lossless, rows

Law = Callable[[Text], DoubleArray]


@dataclass(slots=True)
class Chosen(Noise):
    """Noise whose numbers for acceptance are given: etas[i] decides whether i + 1 tokens are accepted."""

    etas: tuple[float, ...] = ()

    def ahead(self, tokens: int) -> Chosen:
        return replace(self, position=self.position + tokens)

    def uniform(self, purpose: Purpose, sibling: int = 0) -> float:
        return self.etas[self.position] if purpose == Purpose.ACCEPT else 0.5


def thresholds(logits: FloatArray, proposal: Proposal) -> list[float]:
    """h_i of each prefix, found by bisection of the number that must be below it."""
    found = []
    for i in range(len(proposal)):
        low, high = 0.0, 1.0
        for _ in range(45):
            middle = (low + high) / 2
            etas = tuple(middle if j == i else 1 - 2**-53 for j in range(len(proposal)))
            accepted = len(verify(logits, proposal, WARM, Chosen(0, etas=etas), NEW).path) > i
            low, high = (middle, high) if accepted else (low, middle)
        found.append(low)
    return found


def final_law(logits: FloatArray, proposal: Proposal, accepted: int, monkeypatch: pytest.MonkeyPatch) -> DoubleArray:
    """The law that the token after `accepted` drafted ones is drawn from."""
    laws: list[Distribution] = []
    with monkeypatch.context() as patch:
        patch.setattr(Distribution, "draw", lambda self, uniform: laws.append(self) or 0)
        patch.setattr(base, "draw_coupled", lambda row, params, *_: laws.append(distribution(row, params)) or 0)
        etas = tuple(0.0 if i + 1 == accepted else 1 + 1e-9 for i in range(len(proposal)))
        assert len(verify(logits, proposal, WARM, Chosen(0, etas=etas), NEW).path) == accepted
    [law] = laws
    return law.dense(logits.shape[1])


def exact(p: Law, q: Law, vocabulary: int, k: int, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[Text, float], float]:
    """The law of the first k + 1 tokens under `verify`, all drafts enumerated; and the mean number accepted."""
    law: dict[Text, float] = defaultdict(float)
    mean = 0.0
    for chain in product(range(vocabulary), repeat=k):
        laws = [q(chain[:i]) for i in range(k)]
        drafted = np.prod([laws[i][chain[i]] for i in range(k)])
        if drafted == 0:
            continue
        proposal = Proposal.chain(chain, "drawn", q=laws)
        logits = rows(p, (), proposal)
        h = [0.0, *thresholds(logits, proposal)]
        for accepted in range(k + 1):
            weight = (
                drafted * (h[accepted] if accepted else 1.0) * np.prod([1 - h[j] for j in range(accepted + 1, k + 1)])
            )
            if weight < 1e-12:
                continue
            mean += weight * accepted
            following = final_law(logits, proposal, accepted, monkeypatch)
            for rest in product(range(vocabulary), repeat=k + 1 - accepted):
                text = (*chain[:accepted], *rest)
                later = np.prod([p(text[:i])[text[i]] for i in range(accepted + 1, k + 1)])
                law[text] += weight * following[rest[0]] * later
    return law, mean


def off_by(p: Law, law: dict[Text, float], vocabulary: int, k: int) -> float:
    """The largest error of a law of texts of k + 1 tokens."""
    texts = product(range(vocabulary), repeat=k + 1)
    return max(abs(law[text] - np.prod([p(text[:i])[text[i]] for i in range(k + 1)])) for text in texts)


def random_law(seed: int, vocabulary: int, zeros: float) -> Law:
    """A distribution per text, some of whose probabilities are 0, and some of which are shared."""

    def law(text: Text) -> DoubleArray:
        rng = np.random.default_rng([seed, *text])
        weights = rng.integers(1, 5, vocabulary) * (rng.random(vocabulary) >= zeros)
        weights[rng.integers(vocabulary)] += 1
        return weights / weights.sum()

    return law


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([(1, 2), (2, 1), (2, 2), (2, 3), (3, 2)]), st.sampled_from([0.0, 0.4]))
def test_the_law_is_the_targets(seed: int, shape: tuple[int, int], zeros: float) -> None:
    vocabulary, k = shape
    p, q = random_law(seed, vocabulary, zeros), random_law(seed + 1, vocabulary, zeros)
    with pytest.MonkeyPatch.context() as patch:
        law, mean = exact(p, q, vocabulary, k, patch)
    assert off_by(p, law, vocabulary, k) < 1e-5
    token_by_token = sum(
        np.prod([np.minimum(p(text[:j])[text[j]], q(text[:j])[text[j]]) for j in range(i)])
        for i in range(1, k + 1)
        for text in product(range(vocabulary), repeat=i)
    )
    assert mean >= token_by_token - 1e-5  # never worse, says the paper


def test_the_drafters_own_law_is_accepted_whole() -> None:  # B28
    p = random_law(3, 3, 0.0)
    with pytest.MonkeyPatch.context() as patch:
        assert exact(p, p, 3, 2, patch)[1] == pytest.approx(2, abs=1e-5)


def test_the_papers_example_accepts_eleven_ninths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its motivation: two tokens of M_b = (1/3, 2/3), drafted from M_s = (2/3, 1/3); token by token it is 10/9."""
    _, mean = exact(lambda text: np.array([1, 2]) / 3, lambda text: np.array([2, 1]) / 3, 2, 2, monkeypatch)
    assert mean == pytest.approx(11 / 9, abs=1e-6)


def unscaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual of rejection, without p_tau (B14)."""
    honest = rejection.residual
    monkeypatch.setattr(rejection, "residual", lambda law, token, q, scale=1.0: honest(law, token, q))


def own_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """h_i = p_i for every i (B14)."""
    monkeypatch.setattr(block, "_keep", lambda excess, share: share)


def softmaxed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual through softmax (B03)."""
    honest = rejection.residual

    def residual(law: Distribution, token: int, q: DoubleArray | None, scale: float = 1.0) -> Distribution:
        left = honest(law, token, q, scale)
        return Distribution(left.ids, np.exp(left.p) / np.exp(left.p).sum())

    monkeypatch.setattr(rejection, "residual", residual)


@pytest.mark.parametrize("fault", [unscaled, own_share, softmaxed])
def test_a_planted_fault_would_be_seen(fault: Callable[[pytest.MonkeyPatch], None]) -> None:
    worst = 0.0
    for seed in range(4):
        p, q = random_law(seed, 3, 0.0), random_law(seed + 100, 3, 0.0)
        with pytest.MonkeyPatch.context() as patch:
            fault(patch)
            worst = max(worst, off_by(p, exact(p, q, 3, 2, patch)[0], 3, 2))
    assert worst > 1e-3


def test_chosen_tokens_keep_the_law() -> None:
    """Tokens without chance: q is one-hot (B01, B15)."""

    def target(text: Text) -> tuple[float, ...]:
        return ((0.5, 0.3, 0.2), (0.1, 0.2, 0.7), (0.2, 0.8, 0.0))[text[-1] if text else 0]

    def argmax(text: Text, chance: np.random.Generator) -> Proposal:
        return Proposal.chain([0, 2, 1], "argmax")

    def as_if_drawn(text: Text, chance: np.random.Generator) -> Proposal:
        return Proposal.chain([0, 2, 1], "argmax", q=[np.array([0.4, 0.3, 0.3])] * 3)

    assert lossless(verify, target, argmax, 3, 5000)
    assert not lossless(verify, target, as_if_drawn, 3, 5000)


def test_a_tree_is_left_to_rejection() -> None:
    q = np.array([0.25, 0.75])
    tree = Proposal((0, 1, 1), (ROOT, ROOT, 1), "n", (0.5,) * 3, (q, np.array([0.0, 1.0]), q))
    logits = np.log(np.array([[0.5, 0.5], [0.1, 0.9], [0.6, 0.4], [0.3, 0.7]])).astype(np.float32)
    for seed in range(100):
        expected = rejection.verify(logits, tree, WARM, Noise(seed), NEW)
        assert verify(logits, tree, WARM, Noise(seed), NEW) == expected


def test_a_chain_of_one_is_judged_as_by_rejection() -> None:
    one = drawn(lambda text: np.array([0.2, 0.8]), 1)
    for seed in range(100):
        proposal = one((), np.random.default_rng(seed))
        logits = rows(lambda text: (0.6, 0.4), (), proposal)
        expected = rejection.verify(logits, proposal, WARM, Noise(seed), NEW)
        assert verify(logits, proposal, WARM, Noise(seed), NEW) == expected


@pytest.mark.parametrize("q", [np.array([0.0, 1.0]), np.array([1.0]), np.array([0.5, np.nan]), np.array([1.5, -0.5])])
def test_a_chain_ends_before_a_broken_q(q: DoubleArray) -> None:
    logits = np.log(np.array([[0.6, 0.4]] * 4)).astype(np.float32)
    half = np.array([0.5, 0.5])
    broken = Proposal.chain([0, 0, 1], "broken", q=[half, q, half])
    for seed in range(50):
        expected = verify(logits[:2], broken.cut(1), WARM, Noise(seed), NEW)
        assert verify(logits, broken, WARM, Noise(seed), NEW) == expected


@given(cases(), st.integers(0, 2**63 - 1))
def test_outcomes_are_possible_and_pure(case: tuple[FloatArray, Proposal], seed: int) -> None:
    logits, tree = case
    proposal = Proposal(tree.tokens, tuple(range(-1, len(tree) - 1)), "any", tree.estimates, tree.q)
    before = logits.copy()
    outcome = verify(logits, proposal, WARM, Noise(seed, 1, 7, 5), NEW)
    assert verify(logits, proposal, WARM, Noise(seed, 1, 7, 5), NEW) == outcome
    assert is_path(outcome.path, proposal)
    emitted = (*(proposal.tokens[j] for j in outcome.path), outcome.token)
    for node, token in zip((ROOT, *outcome.path), emitted, strict=True):
        assert logits[node + 1, token] > -np.inf
    np.testing.assert_array_equal(logits, before)


def test_a_row_that_is_not_a_number_is_an_error_only_where_it_can_be_reached() -> None:
    logits = np.array([[0, -np.inf], [0, 0], [np.nan, 0]], np.float32)
    assert verify(logits, Proposal.chain([1, 0], "n"), WARM, Noise(0), NEW) == Outcome((), 0)
    with pytest.raises(NumericError, match="nan"):
        verify(logits[2:], EMPTY, WARM, Noise(0), NEW)
