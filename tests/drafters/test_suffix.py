"""The suffix index finds the occurrences that a search finds; they vote; and nothing of a request outlives it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import LLM, SamplingParams
from outrider.drafters.base import DraftRequest, RequestView
from outrider.drafters.suffix import PastOutputs, SuffixDrafter
from outrider.kernels._drafting import Followers, Index, grow
from outrider.policy.costs import FREE
from outrider.types import EMPTY, Proposal
from tests.drafters import by_search
from tests.tiny import tiny_llama


def propose(
    tokens: Sequence[int],
    most: int = 9,
    drafter: SuffixDrafter | None = None,
    id: int = 1,
    *,
    reuse: bool = True,
) -> Proposal:
    drafter = drafter or SuffixDrafter()
    drafter.begin(RequestView(id=id, tokens=tokens, prompt_length=1, reuse=reuse))
    return drafter.propose([DraftRequest(id=id, tokens=tokens, prompt_length=1, most=most, reuse=reuse)])[0]


TEXTS = st.lists(st.integers(0, 3), max_size=60)


@given(TEXTS, st.integers(0, 60), st.lists(TEXTS, max_size=2), st.integers(0, 12))
def test_the_tree_is_the_one_that_a_search_gives(
    tokens: list[int], split: int, past: list[list[int]], count: int
) -> None:
    assert tree(tokens, count, past, split=split) == by_search.tree(tokens, count, past)


CHANCES = st.lists(st.integers(1, 255), min_size=1, max_size=4)
TABLES = st.dictionaries(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), CHANCES, max_size=30)


@given(TEXTS, TABLES, st.integers(0, 12), st.sampled_from([1.0, 0.37]))
def test_so_it_is_with_a_table_of_followers(
    tokens: list[int], rows: dict[tuple[int, ...], list[int]], count: int, odds: float
) -> None:
    table = {key: [(token, chance / 256) for token, chance in enumerate(row)] for key, row in rows.items()}
    found = tree(tokens, count, followers=made(rows), odds=odds)
    assert found == by_search.tree(tokens, count, table=table, odds=odds)


def test_at_a_temperature_its_estimates_are_lower() -> None:
    tokens = [5, 6, 7, 8, 5, 6]
    drafter = SuffixDrafter()
    drafter.begin(RequestView(id=1, tokens=tokens, prompt_length=1))
    greedy, drawn = (
        drafter.propose([DraftRequest(id=1, tokens=tokens, prompt_length=1, most=4, params=params)])[0].estimates[0]
        for params in (SamplingParams(), SamplingParams(temperature=1.0))
    )
    assert drawn / (1 - drawn) == pytest.approx(np.exp(-1) * greedy / (1 - greedy))


def tree(
    tokens: list[int],
    count: int,
    past: Sequence[list[int]] = (),
    *,
    split: int = 0,
    followers: Followers | None = None,
    odds: float = 1.0,
) -> list[tuple[int, int, float]]:
    index, others = Index(), [Index() for _ in past]
    index.append(tokens[:split])
    index.append(tokens[split:])
    for other, text in zip(others, past, strict=True):
        other.append(text)
    return list(zip(*grow(index, others, followers, count, odds), strict=True))


def made(rows: dict[tuple[int, ...], list[int]]) -> Followers:
    """A table in which token i follows row with a chance of row[i] / 256."""
    followers = Followers()
    for order in (3, 2, 1):
        keys = sorted(key for key in rows if len(key) == order)
        chances = np.array([[*rows[key], 0, 0, 0, 0][:4] for key in keys], np.uint8).reshape(-1, 4)
        ranks = np.argsort(-chances.astype(np.int32), axis=1, kind="stable").astype(np.int32)
        packed = np.array([sum(token << 21 * i for i, token in enumerate(reversed(key))) for key in keys], np.int64)
        followers.add(order, packed, ranks, np.take_along_axis(chances, ranks, 1))
    return followers


def test_the_search_is_not_blind() -> None:
    assert by_search.occurrences([5, 6, 7, 5, 6], [5, 6]) == [([5, 6, 7, 5, 6], 2, 2)]
    text = [1, 2, 3, 4, 9, 8, 2, 3, 4, 9, 1, 2, 3, 4]
    assert by_search.occurrences(text, [1, 2, 3, 4]) == [(text, 4, 4)]
    assert [at for _, at, _ in by_search.occurrences([3, 8, 3, 9, 3], [3])] == [3, 1]


def test_the_table_speaks_where_the_text_is_silent() -> None:
    followers = made({(5,): [0, 128, 64], (7, 5): [0, 0, 0, 200]})
    assert tree([9, 5], 8, followers=followers) == [(1, -1, 0.5), (2, -1, 0.25)]
    assert tree([7, 5], 8, followers=followers) == [(3, -1, 200 / 256)]  # the longer context knows better
    # One match of one token, which is right in 0.85 of what it says: silence has three votes of four.
    said = tree([5, 2, 9, 5], 8, followers=followers)
    assert [node[0] for node in said if node[1] == -1] == [2, 1]
    assert [round(node[2], 4) for node in said if node[1] == -1] == [round(0.85 * 0.25 + 0.75 / 4, 4), 0.75 / 2]


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
    def first(match: int, times: int = 1) -> float:
        known = list(range(10, 10 + match))
        return propose([token for i in range(times) for token in (*known, 1, 100 + i)] + known, 1).estimates[0]

    assert first(1) < first(2) < first(4) < first(9) < 1
    assert first(3) < first(3, 2) < first(3, 3) < 1
    both = propose([1, 8, 2, 8, 2, 8], 2)
    assert set(both.tokens) == {2} or sum(both.estimates[node] for node in both.children(-1)) < 1


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


def test_who_opts_out_of_reuse_neither_reads_past_outputs_nor_adds_to_them() -> None:
    drafter = SuffixDrafter(past=PastOutputs())
    propose([50, 7, 8, 9], drafter=drafter, reuse=False)
    drafter.end(1)
    assert propose([60, 7, 8], drafter=drafter, id=2) is EMPTY
    propose([50, 17, 18, 19], drafter=drafter, id=3)
    drafter.end(3)
    assert propose([60, 17, 18], drafter=drafter, id=4, reuse=False) is EMPTY
    assert propose([60, 17, 18], drafter=drafter, id=5).tokens == (19,)


def test_past_outputs_have_a_bound_and_the_oldest_go_first() -> None:
    past = PastOutputs(generation=100)
    for n in range(50):
        past.add([1000 + n, 2000 + n, 3000 + n])
    past.add(range(5000, 9000))
    past.add([1, 2])
    assert sum(map(len, past.indices)) <= 2 * 104
    for token, known in ((1000, False), (5000, True), (1, True)):
        drafter = SuffixDrafter(past=past)
        assert bool(propose([token], drafter=drafter)) is known


def test_a_proposal_takes_in_only_what_is_new() -> None:  # B104
    """So what it has seen may be overwritten, and it does not notice."""
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    drafter = SuffixDrafter()
    propose(text, drafter=drafter)
    text[:] = [9] * 8
    text += [2, 3, 4]
    (proposal,) = drafter.propose([DraftRequest(id=1, tokens=text, prompt_length=1, most=2)])
    assert proposal.tokens == (5, 6)


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
