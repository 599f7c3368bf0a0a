"""Coupled: the text follows from the seed alone, has the target's law, and like-minded drafters are mostly right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import NumericError
from outrider.randomness import Noise, Purpose
from outrider.sampling import Distribution, History, SamplingParams, distribution
from outrider.types import EMPTY, ROOT, FloatArray, Outcome, Proposal
from outrider.verify.coupled import verify
from tests.verify.laws import (
    FAULTY_RUNS,
    NEW,
    WARM,
    Draft,
    Text,
    cases,
    decode,
    drawn,
    is_path,
    lossless,
    nothing,
    rows,
)


def target(text: Text) -> tuple[float, ...]:
    return ((0.6, 0.4), (0.3, 0.7))[text[-1] if text else 0]


skewed = drawn(lambda text: np.array([0.9, 0.1]), 2)  # B08: a uniform q would hide a redraw


def redraw(logits: FloatArray, proposal: Proposal, params: SamplingParams, noise: Noise, history: History) -> Outcome:
    """A planted fault: a mismatch triggers a fresh draw (B08, variant B)."""
    outcome = verify(logits, proposal, params, noise, history)
    node = outcome.path[-1] if outcome.path else ROOT
    if not proposal.children(node):
        return outcome
    fresh = distribution(logits[node + 1], params).draw(noise.ahead(len(outcome.path)).uniform(Purpose.RESIDUAL))
    return Outcome(outcome.path, fresh)


@pytest.mark.parametrize("draft", [nothing, skewed], ids=["plain", "drafted"])
def test_texts_have_the_targets_law(draft: Draft) -> None:
    assert lossless(verify, target, draft, 3)


def test_a_redraw_on_mismatch_would_be_seen() -> None:
    assert not lossless(redraw, target, skewed, 1, FAULTY_RUNS)


def test_the_same_seed_gives_the_same_text_with_any_drafter() -> None:
    texts = [decode(verify, target, nothing, seed, 12, WARM) for seed in range(50)]
    assert texts == [decode(verify, target, skewed, seed, 12, WARM) for seed in range(50)]
    assert len(set(texts)) > 40
    assert texts != [decode(redraw, target, skewed, seed, 12, WARM) for seed in range(50)]


@given(cases(), st.integers(0, 2**63 - 1))
def test_outcomes_are_possible_pure_and_independent_of_the_proposal(
    case: tuple[FloatArray, Proposal], seed: int
) -> None:
    logits, proposal = case
    before = logits.copy()
    noise = Noise(seed, 2, 9, 9)
    outcome = verify(logits, proposal, WARM, noise, NEW)
    assert verify(logits, proposal, WARM, Noise(seed, 2, 9, 4), NEW) == outcome  # whatever was committed when
    np.testing.assert_array_equal(logits, before)
    assert is_path(outcome.path, proposal)
    emitted = (*(proposal.tokens[j] for j in outcome.path), outcome.token)
    for depth, (node, token) in enumerate(zip((ROOT, *outcome.path), emitted, strict=True)):
        assert logits[node + 1, token] > -np.inf
        assert verify(logits[node + 1 : node + 2], EMPTY, WARM, noise.ahead(depth), NEW).token == token


def test_the_draw_is_the_argmax_of_log_p_plus_gumbel_noise() -> None:
    rng = np.random.default_rng(0)
    for seed in range(300):
        p = rng.dirichlet(np.full(200, 0.1 if seed % 2 else 30.0)) + 1e-12
        law = Distribution(np.sort(rng.choice(50_000, 200, replace=False)), p / p.sum())
        noise = Noise(seed, 0, 3)
        gumbel = -np.log(noise.exponentials(Purpose.TARGET, law.ids))
        assert law.draw_coupled(noise) == law.ids[np.argmax(np.log(law.p) + gumbel)]


def test_drafter_and_target_agree_at_least_as_often_as_the_paper_says() -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.3, 0.4])
    ids = np.arange(3)

    def agreement(shift: int) -> float:
        target, drafter = Distribution(ids, p), Distribution(ids, q)
        return (
            sum(target.draw_coupled(Noise(seed)) == drafter.draw_coupled(Noise(seed + shift)) for seed in range(4000))
            / 4000
        )

    total_variation = 0.2
    promised = (1 - total_variation) / (1 + total_variation)
    assert agreement(0) > promised
    assert agreement(100_000) < promised - 0.2  # other noise: only chance


def test_a_likely_draft_is_accepted_to_its_leaf_and_a_bonus_is_drawn() -> None:
    proposal = Proposal.chain([1, 1], "n")
    sure: FloatArray = rows(lambda text: (0.0, 1.0), (), proposal)
    assert verify(sure, proposal, WARM, Noise(4), NEW) == Outcome((0, 1), 1)


def test_a_vocabulary_of_one() -> None:
    assert verify(np.zeros((1, 1), np.float32), EMPTY, WARM, Noise(0), NEW) == Outcome((), 0)


def test_a_row_that_is_not_a_number_is_an_error() -> None:
    with pytest.raises(NumericError):
        verify(np.array([[np.nan, 0]], np.float32), EMPTY, WARM, Noise(0), NEW)
