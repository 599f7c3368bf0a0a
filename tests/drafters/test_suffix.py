"""The suffix index finds the occurrences that a search finds; they vote; and nothing of a request outlives it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import LLM, SamplingParams
from outrider.drafters.base import DraftRequest, RequestView
from outrider.drafters.suffix import LONGEST, OCCURRENCES, PastOutputs, SuffixDrafter, SuffixIndex, votes
from outrider.policy.costs import FREE
from outrider.types import EMPTY, Proposal
from tests.tiny import tiny_llama


def search(tokens: Sequence[int], suffix: Sequence[int]) -> list[tuple[int, int]]:
    """The same by brute force: position after, and length of, each match of the longest n-gram, latest first."""
    for n in (4, 2, 1):
        ends = [end for end in range(len(tokens) - 1, n - 1, -1) if list(tokens[end - n : end]) == list(suffix[-n:])]
        if n <= len(suffix) and ends:
            return [(end, common(tokens[:end], suffix)) for end in ends]
    return []


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Equal tokens at the ends."""
    length = 0
    while length < min(len(a), len(b), LONGEST) and a[-1 - length] == b[-1 - length]:
        length += 1
    return length


def propose(tokens: Sequence[int], most: int = 9, drafter: SuffixDrafter | None = None, id: int = 1) -> Proposal:
    drafter = drafter or SuffixDrafter()
    drafter.begin(RequestView(id=id, tokens=tokens, prompt_length=1))
    return drafter.propose([DraftRequest(id=id, tokens=tokens, prompt_length=1, most=most)])[0]


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 60), st.lists(st.integers(0, 3), max_size=3))
def test_the_index_finds_what_a_search_finds_however_the_text_grew(
    tokens: list[int], split: int, drafted: list[int]
) -> None:
    index = SuffixIndex()
    index.extend(tokens[:split])
    index.extend(tokens)
    suffix = [*tokens, *drafted][-LONGEST:]
    found = [(position, length) for _, position, length in index.matches(suffix)]
    expected = search(tokens, suffix)
    assert found == expected[: len(found)]
    assert len(found) >= min(len(expected), OCCURRENCES - 1)  # the end of the text itself may be among those looked at


def test_the_search_is_not_blind() -> None:
    assert search([5, 6, 7, 5, 6], [5, 6]) == [(2, 2)]
    assert search([1, 2, 3, 4, 9, 8, 2, 3, 4, 9, 1, 2, 3, 4], [1, 2, 3, 4]) == [(4, 4)]
    assert search([3, 8, 3, 9, 3], [3]) == [(3, 1), (1, 1)]


@pytest.mark.parametrize("tokens", [[], [5], [5, 6], [1, 2, 3, 4]])
def test_without_a_match_nothing_is_proposed(tokens: list[int]) -> None:  # B97: the end does not match itself
    assert propose(tokens) is EMPTY


def test_where_the_occurrences_agree_the_proposal_is_a_chain() -> None:
    proposal = propose([5, 6, 7, 8, 9, 10, 11, 7, 8], 5)
    assert proposal.tokens == (9, 10, 11, 7, 8)
    assert proposal.parents == (-1, 0, 1, 2, 3)
    assert (proposal.drafter, proposal.q) == ("suffix", (None,) * 5)


def test_where_they_do_not_it_is_a_tree_most_probable_nodes_first() -> None:
    proposal = propose([0, 1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2, 3, 4, 7, 1, 2, 3])
    assert proposal.tokens[0] == 4  # twice, against once
    assert 5 in [proposal.tokens[node] for node in proposal.children(-1)]
    gains: list[float] = []
    for parent, estimate in zip(proposal.parents, proposal.estimates, strict=True):
        gains.append(estimate * (gains[parent] if parent >= 0 else 1.0))
    assert gains == sorted(gains, reverse=True)


def test_a_loop_is_continued_round_and_round() -> None:
    assert propose([9, 1, 2, 3, 1, 2, 3], 5, SuffixDrafter()).tokens == (1, 2, 3, 1, 2)
    assert propose([4] * 20).tokens == (4,) * 8


def test_at_most_k_and_at_most_what_is_wanted() -> None:
    assert [len(propose([4] * 9, most)) for most in (0, 1, 3, 100)] == [0, 1, 3, 8]
    assert len(propose([4] * 9, 100, SuffixDrafter(k=5))) == 5
    assert propose([4] * 9, 5, SuffixDrafter(k=0)) is EMPTY


def test_longer_matches_and_more_of_them_are_trusted_more() -> None:
    text = list(range(100))

    def first(*lengths: int, token: int = 1) -> float:
        return votes([(text, token, length) for length in lengths])[0][1]

    assert first(1) < first(2) < first(4) < first(9) < 1
    assert first(3) < first(3, 3) < first(3, 3, 3) < 1
    both = votes([(text, 1, 5), (text, 2, 3), (text, 3, 5), (text, 3, 5)])
    assert [token for token, _ in both] == [3, 1, 2]
    assert sum(estimate for _, estimate in both) < 1
    assert votes([]) == []


def test_requests_share_nothing_and_leave_nothing() -> None:  # B101
    drafter = SuffixDrafter()
    assert propose([7, 8, 7, 8], drafter=drafter)
    assert propose([7], drafter=drafter, id=2) is EMPTY
    for id in (1, 2, 2):
        drafter.end(id)
    assert not drafter._texts
    assert propose([7], drafter=drafter, id=3) is EMPTY


def test_past_outputs_are_drafted_from_where_that_is_allowed() -> None:
    drafter = SuffixDrafter(past=PastOutputs())
    assert propose([50, 7, 8, 9, 10], drafter=drafter) is EMPTY
    drafter.end(1)
    assert propose([60, 7, 8], drafter=drafter, id=2).tokens == (9, 10)
    assert propose([60, 50], drafter=drafter, id=3) is EMPTY  # a prompt is no output
    assert propose([60, 9, 10], drafter=drafter, id=4) is EMPTY  # no draft runs from one output into the next


def test_past_outputs_have_a_bound_and_the_oldest_go_first() -> None:
    past = PastOutputs(generation=100)
    for n in range(50):
        past.add([1000 + n, 2000 + n, 3000 + n])
    past.add(range(5000, 9000))
    past.add([1, 2])
    assert sum(map(len, past._texts)) <= 2 * 101
    assert past.matches([1000]) == []
    assert past.matches([1049]) == [] or len(past.matches([1049])) == 1
    assert len(past.matches([1])) == 1
    assert sum(len(chain[2]) for index in past._indices for chain in index._chains) <= 3 * 2 * 101


class Counting(list[int]):
    """A list that counts the tokens that are read."""

    reads = 0

    def __getitem__(self, place):  # type: ignore[no-untyped-def]
        self.reads += 1
        return super().__getitem__(place)


@pytest.mark.parametrize("values", [2, 2000])
def test_the_work_per_proposal_does_not_grow_with_the_context(values: int) -> None:  # B104
    most = []
    for length in (1_000, 100_000):
        text = Counting(int(t) for t in np.random.default_rng(0).integers(0, values, length))
        drafter = SuffixDrafter()
        assert text.reads == 0
        propose(text, drafter=drafter)
        assert text.reads >= length  # the prompt, once: the counter works
        before = text.reads
        for token in range(20):
            text.append(token % values)
            drafter.propose([DraftRequest(id=1, tokens=text, prompt_length=1, most=5)])
        most.append((text.reads - before) / 20)
    bound = 5 * OCCURRENCES * (LONGEST + 5)
    assert most[1] < bound


def test_memory_stays_below_half_a_kilobyte_per_token() -> None:
    index = SuffixIndex()
    index.extend([int(t) for t in np.random.default_rng(0).integers(0, 50_000, 20_000)])
    size = 28 * 20_000
    for _, _, latest, earlier in index._chains:
        size += sys.getsizeof(latest) + sum(map(sys.getsizeof, latest)) + sys.getsizeof(earlier)
    assert size / 20_000 < 500


def test_learning_is_off_by_default_and_changes_no_text(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf")
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    plain = LLM(path, threads=1, costs=FREE)
    first, again = (plain.generate("Hello", params)[0] for _ in range(2))
    assert again.steps == first.steps
    learning = LLM(path, threads=1, costs=FREE, learn_from_outputs=True)
    before, after = (learning.generate("Hello", params)[0] for _ in range(2))
    assert before.token_ids == after.token_ids == first.token_ids
    assert after.steps < before.steps
