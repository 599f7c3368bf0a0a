"""Rejection keeps the target's law, on chains and trees, for drawn and for chosen tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import NumericError
from outrider.randomness import Noise, Purpose
from outrider.sampling import Distribution, History, SamplingParams, distribution
from outrider.types import EMPTY, ROOT, DoubleArray, FloatArray, Outcome, Proposal
from outrider.verify import rejection, rule
from outrider.verify.rejection import verify
from tests.verify.laws import FAULTY_RUNS, NEW, WARM, Draft, Text, cases, drawn, fits, is_path, lossless, nothing


def skewed(text: Text) -> tuple[float, ...]:
    return ((0.5, 0.3, 0.2), (0.1, 0.2, 0.7), (0.2, 0.8, 0.0))[text[-1] if text else 0]


def otherwise(text: Text) -> DoubleArray:
    return np.array(((0.7, 0.2, 0.1), (0.3, 0.3, 0.4), (0.1, 0.5, 0.4))[text[-1] if text else 0])


def without_replacement(text: Text, chance: np.random.Generator) -> Proposal:
    """Two siblings at the root, the second drawn from q without the first, and two below each of them."""
    tokens: list[int] = []
    parents: list[int] = []
    laws: list[DoubleArray] = []
    for parent in (ROOT, 0, 1):
        q = otherwise(text if parent == ROOT else (*text, tokens[parent])).copy()
        for _ in range(2):
            tokens.append(int(q.cumsum().searchsorted(chance.random(), side="right")))
            parents.append(parent)
            laws.append(q)
            q = q.copy()
            q[tokens[-1]] = 0
            q /= q.sum()
    return Proposal(tuple(tokens), tuple(parents), "tree", (0.5,) * 6, tuple(laws))


def best_two(text: Text, chance: np.random.Generator) -> Proposal:
    """The two most probable tokens of the drafter: chosen, not drawn (B15)."""
    first, second = (int(i) for i in np.argsort(-otherwise(text))[:2])
    return Proposal((first, second), (ROOT, ROOT), "beam", (0.5, 0.3), (None, None))


class Shared(Noise):
    """A planted fault: one uniform serves all purposes and siblings of a position."""

    def uniform(self, purpose: Purpose, sibling: int = 0) -> float:
        return Noise.uniform(self, Purpose.ACCEPT)

    def ahead(self, tokens: int) -> Noise:
        return Shared(self.seed, self.choice, self.position + tokens, self.committed)


def sharing(logits: FloatArray, proposal: Proposal, params: SamplingParams, noise: Noise, history: History) -> Outcome:
    return verify(logits, proposal, params, Shared(noise.seed, noise.choice, noise.position, noise.committed), history)


def softmax_residual(law: Distribution, token: int, q: DoubleArray | None) -> Distribution:
    assert q is not None
    weights = np.exp(np.maximum(law.p - q[law.ids], 0))
    return Distribution(law.ids, weights / weights.sum())


def keep_law(law: Distribution, token: int, q: DoubleArray | None) -> Distribution:
    return law


@pytest.mark.parametrize(
    ("draft", "length"),
    [(nothing, 2), (drawn(otherwise, 1), 2), (drawn(otherwise, 3), 3), (without_replacement, 3), (best_two, 2)],
    ids=["plain", "one", "chain", "tree", "beam"],
)
def test_texts_have_the_targets_law(draft: Draft, length: int) -> None:
    assert lossless(verify, skewed, draft, length)


@dataclass(slots=True)
class Given(Noise):
    """Noise that gives `number` to the sibling `chosen`, and refuses the others if it can."""

    chosen: int = 0
    number: float = 0.0

    def uniform(self, purpose: Purpose, sibling: int = 0) -> float:
        return self.number if sibling == self.chosen else 1 - 2**-53


def siblings_law(p: DoubleArray, q: DoubleArray, siblings: int, careless: bool = False) -> DoubleArray:
    """The law of the first token, all draws of so many siblings without replacement enumerated, by bisection."""
    law = np.zeros(len(p))
    logits = np.log(np.stack([p] * (siblings + 1))).astype(np.float32)
    for tokens in permutations(range(len(p)), siblings):
        laws = [q]
        for token in tokens[:-1]:
            left = np.where(np.arange(len(q)) == token, 0, laws[-1])
            laws.append(left / left.sum())
        weight = float(np.prod([law[token] for law, token in zip(laws, tokens, strict=True)]))
        told = [q] * siblings if careless else laws
        tree = Proposal(tokens, (ROOT,) * siblings, "n", (0.5,) * siblings, tuple(told))
        for sibling in range(siblings):
            low, high = 0.0, 1.0
            for _ in range(45):
                middle = (low + high) / 2
                noise = Given(0, chosen=sibling, number=middle)
                accepted = verify(logits, tree, WARM, noise, NEW).path == (sibling,)
                low, high = (middle, high) if accepted else (low, middle)
            law[tokens[sibling]] += weight * low
            weight *= 1 - low
        if weight > 1e-12:
            left = Distribution(np.arange(len(p), dtype=np.int32), p)
            for token, each in zip(tokens, told, strict=True):
                left = rejection.residual(left, token, each)
            law += weight * left.dense(len(p))
    return law


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([(2, 2), (3, 1), (3, 2), (3, 3), (4, 2)]))
def test_siblings_drawn_without_replacement_keep_the_law_exactly(seed: int, shape: tuple[int, int]) -> None:
    vocabulary, siblings = shape
    p, q = (np.random.default_rng(seed + i).integers(1, 6, vocabulary).astype(float) for i in range(2))
    np.testing.assert_allclose(siblings_law(p / p.sum(), q / q.sum(), siblings), p / p.sum(), atol=1e-5)


def test_the_wrong_q_for_a_younger_sibling_is_off_by_percents() -> None:
    p, q = np.array([0.25, 0.35, 0.4]), np.array([0.6, 0.2, 0.2])
    assert np.abs(siblings_law(p, q, 2, careless=True) - p).max() > 0.01


def test_a_residual_through_softmax_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:  # B03
    monkeypatch.setattr(rejection, "residual", softmax_residual)
    assert not lossless(verify, skewed, drawn(otherwise, 1), 1, FAULTY_RUNS)


def test_a_fresh_draw_from_p_after_a_refusal_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection, "residual", keep_law)
    assert not lossless(verify, skewed, drawn(otherwise, 1), 1, FAULTY_RUNS)
    assert not lossless(verify, skewed, best_two, 1, FAULTY_RUNS)


def test_a_shared_uniform_would_be_seen() -> None:
    assert not lossless(sharing, skewed, drawn(otherwise, 1), 1, FAULTY_RUNS)
    assert not lossless(sharing, skewed, without_replacement, 1, FAULTY_RUNS)


def test_a_sibling_held_against_the_wrong_q_would_be_seen() -> None:
    def careless(text: Text, chance: np.random.Generator) -> Proposal:
        tree = without_replacement(text, chance)
        return replace(tree, q=tuple(tree.q[j & ~1] for j in range(6)))

    assert not lossless(verify, skewed, careless, 1, FAULTY_RUNS)


def test_an_argmax_draft_is_one_hot_and_its_softmax_as_q_would_be_seen() -> None:  # B01
    def target(text: Text) -> tuple[float, ...]:
        return 0.6, 0.4

    def argmax(text: Text, chance: np.random.Generator) -> Proposal:
        return Proposal.chain([0], "argmax")

    def as_if_drawn(text: Text, chance: np.random.Generator) -> Proposal:
        return Proposal.chain([0], "argmax", q=[np.array([0.8, 0.2])])

    assert lossless(verify, target, argmax)
    assert not lossless(verify, target, as_if_drawn, 1, FAULTY_RUNS)


def test_every_position_of_a_chain_is_sampled_not_argmaxed() -> None:  # B09
    def flat(text: Text) -> tuple[float, ...]:
        return (0.25,) * 4

    own = drawn(lambda text: np.full(4, 0.25), 2)
    assert lossless(verify, flat, own, 3)

    def argmaxed(
        logits: FloatArray, proposal: Proposal, params: SamplingParams, noise: Noise, history: History
    ) -> Outcome:
        accepted = rule("greedy")(logits, proposal, params, noise, history).path
        return Outcome(
            accepted, verify(logits[len(accepted) :], EMPTY, params, noise.ahead(len(accepted)), history).token
        )

    assert not lossless(argmaxed, flat, own, 3, FAULTY_RUNS)


def test_the_targets_own_draws_are_all_accepted() -> None:  # B28
    logits = np.random.default_rng(3).normal(0, 3, (5, 100)).astype(np.float32)
    laws = [distribution(row, WARM) for row in logits]
    for seed in range(200):
        tokens = [law.draw(Noise(seed, 0, i).uniform(Purpose.DRAFT)) for i, law in enumerate(laws[:4])]
        proposal = Proposal.chain(tokens, "self", q=[law.dense(100) for law in laws[:4]])
        assert verify(logits, proposal, WARM, Noise(seed), NEW).path == (0, 1, 2, 3)


@given(cases(), st.integers(0, 2**63 - 1))
def test_outcomes_are_possible_and_pure(case: tuple[FloatArray, Proposal], seed: int) -> None:
    logits, proposal = case
    before = logits.copy(), [None if q is None else q.copy() for q in proposal.q]
    outcome = verify(logits, proposal, WARM, Noise(seed, 1, 7, 5), NEW)
    assert verify(logits, proposal, WARM, Noise(seed, 1, 7, 5), NEW) == outcome
    assert is_path(outcome.path, proposal)
    emitted = (*(proposal.tokens[j] for j in outcome.path), outcome.token)
    for node, token in zip((ROOT, *outcome.path), emitted, strict=True):
        assert logits[node + 1, token] > -np.inf
    np.testing.assert_array_equal(logits, before[0])  # B10
    for q, copy in zip(proposal.q, before[1], strict=True):
        assert q is None or np.array_equal(q, copy)  # type: ignore[arg-type]


def test_a_sure_token_is_accepted_and_an_impossible_one_refused() -> None:
    logits = np.array([[-np.inf, 0], [-np.inf, 0]], np.float32)
    for seed in range(50):
        assert verify(logits, Proposal.chain([1], "n"), WARM, Noise(seed), NEW) == Outcome((0,), 1)
        assert verify(logits, Proposal.chain([0], "n"), WARM, Noise(seed), NEW) == Outcome((), 1)


def test_duplicate_siblings_are_refused_with_their_elder() -> None:
    logits = np.log(np.array([[0.5, 0.5]] * 3)).astype(np.float32)
    twins = Proposal((0, 0), (ROOT, ROOT), "n", (0.5, 0.5), (None, None))
    outcomes = {verify(logits, twins, WARM, Noise(seed), NEW).path for seed in range(100)}
    assert outcomes == {(0,), ()}


def test_a_vocabulary_of_one_accepts_everything() -> None:
    logits = np.zeros((3, 1), np.float32)
    assert verify(logits, Proposal.chain([0, 0], "n"), WARM, Noise(0), NEW) == Outcome((0, 1), 0)


@pytest.mark.parametrize(
    "q",
    [np.array([0.0, 1.0]), np.array([1.0]), np.array([0.5, np.nan]), np.array([1.5, -0.5]), np.array([0.9, 0.9])],
    ids=["cannot draw it", "wrong shape", "nan", "negative", "sum"],
)
def test_a_node_with_a_broken_q_counts_as_not_proposed(q: DoubleArray) -> None:
    logits = np.log(np.array([[0.6, 0.4]] * 2)).astype(np.float32)
    broken = Proposal.chain([0], "broken", q=[q])
    for seed in range(50):
        assert verify(logits, broken, WARM, Noise(seed), NEW) == verify(logits, EMPTY, WARM, Noise(seed), NEW)


def test_where_nothing_is_left_the_law_itself_answers() -> None:
    law = Distribution(np.array([0, 1]), np.array([0.25, 0.75]))
    assert rejection.residual(law, 0, np.array([0.25, 0.75])) is law
    assert rejection.residual(Distribution(np.array([3]), np.ones(1)), 3, None).ids.tolist() == [3]


def test_a_row_that_is_not_a_number_is_an_error_only_where_it_is_visited() -> None:
    logits = np.array([[0, -np.inf], [np.nan, 0], [0, 0]], np.float32)
    with pytest.raises(NumericError, match="nan"):
        verify(logits, Proposal.chain([0], "n"), WARM, Noise(0), NEW)
    assert verify(logits, Proposal.chain([1], "n"), WARM, Noise(0), NEW) == Outcome((), 0)


def test_the_oracle_accepts_the_truth_and_convicts_a_small_bias() -> None:
    assert fits([6000, 3000, 1000], [0.6, 0.3, 0.1])
    assert not fits([6300, 2700, 1000], [0.6, 0.3, 0.1])
    assert not fits([6000, 3999, 1], [0.6, 0.4, 0.0])
