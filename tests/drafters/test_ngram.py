"""Prompt lookup finds the longest recent match, in time and memory that a long context does not change."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters.base import DraftRequest, RequestView
from outrider.drafters.ngram import PRIORS, NgramDrafter, NgramIndex
from outrider.types import EMPTY, Proposal


def search(tokens: Sequence[int], longest: int = 6) -> tuple[int, int] | None:
    """The same by brute force: the longest suffix that occurred before, last occurrence first."""
    for n in range(min(longest, len(tokens) - 1), 0, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[-n:]:
                return n, start + n
    return None


def propose(tokens: Sequence[int], most: int = 9, drafter: NgramDrafter | None = None) -> Proposal:
    drafter = drafter or NgramDrafter()
    drafter.begin(RequestView(id=1, tokens=tokens, prompt_length=len(tokens)))
    return drafter.propose([DraftRequest(id=1, tokens=tokens, prompt_length=len(tokens), most=most)])[0]


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 60))
def test_the_index_equals_a_search_however_the_text_grew(tokens: list[int], split: int) -> None:
    index = NgramIndex()
    index.extend(tokens[:split])
    index.extend(tokens)
    assert index.match() == search(tokens)


def test_the_search_is_not_blind() -> None:
    assert search([1, 2, 3, 9, 2, 3]) == (2, 3)
    assert search([2, 3, 8, 1, 3, 9, 2, 3]) == (2, 2)  # longer beats more recent
    assert search([3, 8, 3, 9, 3]) == (1, 3)  # the most recent of equals


@pytest.mark.parametrize("tokens", [[], [5], [5, 6], [1, 2, 3, 4]])
def test_without_a_match_nothing_is_proposed(tokens: list[int]) -> None:  # B97: the end does not match itself
    assert propose(tokens) is EMPTY


def test_the_chain_continues_the_match() -> None:
    proposal = propose([5, 6, 7, 8, 9, 10, 11, 7, 8])
    assert proposal.tokens == (9, 10, 11, 7, 8)
    assert proposal.parents == (-1, 0, 1, 2, 3)
    assert (proposal.drafter, proposal.q) == ("ngram", (None,) * 5)


def test_a_loop_is_continued_round_and_round() -> None:
    assert propose([9, 1, 2, 3, 1, 2, 3]).tokens == (1, 2, 3, 1, 2)
    assert propose([4, 4]).tokens == (4,) * 5


def test_at_most_k_and_at_most_what_is_wanted() -> None:
    assert [len(propose([4, 4], most)) for most in (0, 1, 3, 100)] == [0, 1, 3, 5]
    assert len(propose([4, 4], 100, NgramDrafter(k=8))) == 8
    assert propose([4, 4], 5, NgramDrafter(k=0)) is EMPTY


def test_estimates_grow_with_the_match() -> None:
    assert propose([4, 4]).estimates == PRIORS[:5]
    assert propose([1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6]).estimates == (PRIORS[-1],) * 5


def test_requests_share_nothing_and_leave_nothing() -> None:  # B101
    drafter = NgramDrafter()
    assert propose([7, 8, 7, 8], drafter=drafter)
    drafter.begin(RequestView(id=2, tokens=[7], prompt_length=1))
    requests = [
        DraftRequest(id=2, tokens=[7], prompt_length=1, most=5),
        DraftRequest(id=1, tokens=[7, 8, 7, 8], prompt_length=4, most=5),
    ]
    assert [len(proposal) for proposal in drafter.propose(requests)] == [0, 5]
    drafter.end(1)
    drafter.end(2)
    drafter.end(2)
    assert not drafter._indices


class Counting(list[int]):
    """A list that counts the tokens that are read."""

    reads = 0

    def __getitem__(self, place):  # type: ignore[no-untyped-def]
        self.reads += 1
        return super().__getitem__(place)


def test_the_work_per_proposal_does_not_grow_with_the_context() -> None:  # B104
    text = Counting(int(t) for t in np.random.default_rng(0).integers(0, 2000, 100_000))
    drafter = NgramDrafter()
    drafter.begin(RequestView(id=1, tokens=text, prompt_length=len(text)))

    def reads(tokens: Sequence[int]) -> int:
        before = text.reads
        drafter.propose([DraftRequest(id=1, tokens=tokens, prompt_length=len(text), most=5)])
        return text.reads - before

    assert reads(text) >= 100_000  # the prompt, once: the counter works
    text += [1, 2, 3]
    assert reads(text) <= 3 + 5


def test_memory_stays_below_a_kilobyte_per_token() -> None:
    index = NgramIndex()
    index.extend([int(t) for t in np.random.default_rng(0).integers(0, 50_000, 20_000)])
    entries = index._continuations
    numbers = sum(sys.getsizeof(key) for key in entries) + 28 * 20_000
    assert (sys.getsizeof(entries) + numbers) / 20_000 < 1000
