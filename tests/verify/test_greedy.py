"""Greedy: the text of plain greedy decoding, whatever was drafted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from outrider.errors import NumericError
from outrider.randomness import Noise
from outrider.sampling import SamplingParams
from outrider.types import EMPTY, ROOT, FloatArray, Outcome, Proposal
from outrider.verify.greedy import verify
from tests.verify.laws import NEW, cases, is_path

COLD = SamplingParams()


def logits(*best: int, vocabulary: int = 4) -> FloatArray:
    """Rows whose most probable tokens are `best`."""
    return np.eye(vocabulary, dtype=np.float32)[list(best)]


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_a_chain_is_accepted_up_to_its_first_wrong_token(accepted: int) -> None:
    drafted = [1, 2, 3]
    if accepted < 3:
        drafted[accepted] = 0
    outcome = verify(logits(1, 2, 3, 1), Proposal.chain(drafted, "n"), COLD, Noise(0), NEW)
    assert outcome == Outcome(tuple(range(accepted)), (1, 2, 3, 1)[accepted])


def test_an_empty_proposal_is_plain_decoding() -> None:
    assert verify(logits(2), EMPTY, COLD, Noise(0), NEW) == Outcome((), 2)


def test_a_tree_is_followed_down_the_right_branch() -> None:
    #        root -> 0: token 3      1: token 1 -> 2: token 0    3: token 2 -> 4: token 3
    tree = Proposal((3, 1, 0, 2, 3), (ROOT, ROOT, 1, 1, 3), "n", (0.5,) * 5, (None,) * 5)
    assert verify(logits(1, 0, 2, 0, 3, 1), tree, COLD, Noise(0), NEW) == Outcome((1, 3, 4), 1)


def test_duplicate_siblings_are_harmless() -> None:
    twins = Proposal((1, 1), (ROOT, ROOT), "n", (0.5, 0.5), (None, None))
    assert verify(logits(1, 2, 2), twins, COLD, Noise(0), NEW) == Outcome((0,), 2)


def test_the_lowest_id_wins_a_tie() -> None:  # B16
    tied = np.array([[1, 1, 0], [0, 1, 1]], np.float32)
    assert verify(tied, Proposal.chain([0], "n"), COLD, Noise(0), NEW) == Outcome((0,), 1)
    assert verify(tied, Proposal.chain([1], "n"), COLD, Noise(0), NEW) == Outcome((), 0)


def test_the_seed_does_nothing() -> None:  # B20
    rows = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
    proposal = Proposal.chain([int(rows[0].argmax()), 3], "n")
    assert len({verify(rows, proposal, COLD, Noise(seed), NEW) for seed in range(20)}) == 1


@given(cases())
def test_every_emitted_token_is_the_argmax_of_its_row(case: tuple[FloatArray, Proposal]) -> None:
    rows, proposal = case
    before = rows.copy()
    outcome = verify(rows, proposal, COLD, Noise(0), NEW)
    assert is_path(outcome.path, proposal)
    emitted = (*(proposal.tokens[j] for j in outcome.path), outcome.token)
    for node, token in zip((ROOT, *outcome.path), emitted, strict=True):
        assert token == np.argmax(rows[node + 1])
    last = outcome.path[-1] if outcome.path else ROOT
    assert all(proposal.tokens[child] != outcome.token for child in proposal.children(last))
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_a_number_is_an_error_only_where_it_is_visited(value: float) -> None:
    rows = logits(1, 2)
    rows[1, 3] = value
    assert verify(rows, Proposal.chain([0], "n"), COLD, Noise(0), NEW) == Outcome((), 1)
    with pytest.raises(NumericError, match="token 3"):
        verify(rows, Proposal.chain([1], "n"), COLD, Noise(0), NEW)
