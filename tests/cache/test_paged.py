"""Rows laid out on blocks, and what a commit keeps of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cache import BLOCK, KVCache, KVSequence, key_places, value_places
from outrider.cache.paged import RUN
from outrider.models.base import KVShape
from outrider.types import EMPTY, ROOT, Proposal

SHAPE = KVShape(layers=2, heads=3, head_dim=4)


@dataclass
class Stretch:
    """Committed tokens to be computed, as `reserve` wants them."""

    tokens: Sequence[int]
    sequence: KVSequence = field(default_factory=KVSequence)
    wanted: bool = True


def tree(tokens, parents):
    return Proposal(tuple(tokens), tuple(parents), "test", (1.0,) * len(tokens), (None,) * len(tokens))


def write(cache, rows):
    """Keep each row's number at its slot, in every layer, head and dimension."""
    numbers = np.arange(1, len(rows.slots) + 1)
    cache.keys[key_places(rows.slots)] = numbers[:, None, None, None]
    cache.values[value_places(rows.slots)] = numbers[:, None, None, None]
    cache.scales[key_places(rows.slots)] = numbers[:, None, None, None]


def read(cache, sequence):
    """The numbers at the positions of a sequence; keys, values and scales must agree everywhere."""
    slots = np.array(sequence.slots(range(sequence.length)), int)
    keys, values = cache.keys[key_places(slots)], cache.values[value_places(slots)]
    scales = cache.scales[key_places(slots)]
    assert all((array == keys[:, :1, :1, :1]).all() for array in (keys, values, scales))
    return keys[:, 0, 0, 0].tolist()


def test_a_chain_lies_at_its_positions():
    cache = KVCache(SHAPE, 4)
    rows = cache.reserve([Stretch([7, 8])], [Proposal.chain([5, 6], "test")])
    assert rows.tokens.tolist() == [7, 8, 5, 6]
    assert rows.positions.tolist() == rows.slots.tolist() == [0, 1, 2, 3]
    assert rows.tail_starts.tolist() == [1, 2, 3, 4]
    assert rows.tail_offsets.tolist() == [0] * 5
    assert rows.tail_slots.tolist() == []
    assert rows.wanted.tolist() == [1, 2, 3]
    assert rows.tables.tolist() == [[0]]
    assert {array.dtype for array in (getattr(rows, name) for name in rows.__slots__)} == {np.dtype(np.int32)}


def test_a_tree_has_a_slot_per_node_and_a_position_per_depth():
    """
    root - 0 - 1
         \\ 2 - 3      nodes 0 and 1 are a chain from the root; 2 and 3 read their path by slots
    """
    cache = KVCache(SHAPE, 4)
    rows = cache.reserve([Stretch([9])], [tree([1, 2, 3, 4], [ROOT, 0, ROOT, 2])])
    assert rows.positions.tolist() == [0, 1, 2, 1, 2]
    assert rows.slots.tolist() == [0, 1, 2, 3, 4]
    assert rows.tail_starts.tolist() == [1, 2, 3, 1, 1]
    assert rows.tail_offsets.tolist() == [0, 0, 0, 0, 1, 3]
    assert rows.tail_slots.tolist() == [3, 3, 4]
    assert rows.wanted.tolist() == [0, 1, 2, 3, 4]


def test_a_path_of_another_branch_is_a_chain_by_its_parents_and_not_by_its_numbers():
    """Node 2 follows node 1 in number and order, but node 1 is not stored at its position."""
    cache = KVCache(SHAPE, 4)
    rows = cache.reserve([Stretch([9])], [tree([1, 2, 3], [ROOT, ROOT, 1])])
    assert rows.positions.tolist() == [0, 1, 1, 2]
    assert rows.tail_starts.tolist() == [1, 2, 1, 1]
    assert rows.tail_slots.tolist() == [2, 2, 3]


def test_requests_follow_each_other():
    """An unfinished prompt wants no logits; each request has its own table, filled up with zeros."""
    cache = KVCache(SHAPE, 8)
    first, second = Stretch(range(BLOCK + 1), wanted=False), Stretch([4])
    rows = cache.reserve([first, second], [EMPTY, Proposal.chain([5], "test")])
    assert rows.requests.tolist() == [0] * (BLOCK + 1) + [1, 1]
    assert rows.positions.tolist() == [*range(BLOCK + 1), 0, 1]
    assert rows.wanted.tolist() == [BLOCK + 1, BLOCK + 2]
    assert rows.tables.tolist() == [[0, 1], [2, 0]]
    assert rows.slots.tolist() == [*range(BLOCK + 1), 2 * BLOCK, 2 * BLOCK + 1]


def test_slots_come_from_the_block_table_where_the_pool_is_in_pieces():
    """B36, B37: every second block is free; a chain crosses the edge of a block."""
    cache = KVCache(SHAPE, 8)
    taken = cache.pool.take(8)
    cache.pool.give_back(taken[1::2])
    stretch = Stretch(range(BLOCK - 1))
    rows = cache.reserve([stretch], [Proposal.chain([5, 6, 7], "test")])
    assert rows.slots.tolist() == [*range(BLOCK, 2 * BLOCK), 3 * BLOCK, 3 * BLOCK + 1]
    assert rows.positions.tolist() == list(range(BLOCK + 2))


def test_a_draft_may_need_several_new_blocks_and_is_refused_whole_if_they_are_missing():
    """B39: a step may add more than a block; nothing is laid out outside the reservation."""
    cache = KVCache(SHAPE, 3)
    stretch = Stretch(range(BLOCK - 1))
    cache.reserve([stretch], [EMPTY])
    cache.commit(stretch.sequence, BLOCK - 1, ())
    stretch.tokens = [1]
    draft = Proposal.chain([2] * (BLOCK + 1), "test")
    other = cache.pool.take(1)
    with pytest.raises(RuntimeError, match="2 blocks wanted, 1 of 3 are free"):
        cache.reserve([stretch], [draft])
    cache.trim(stretch.sequence)
    assert len(stretch.sequence.blocks) == 1
    cache.pool.give_back(other)
    assert len(cache.reserve([stretch], [draft]).tables[0]) == 3


def test_a_reservation_is_undone_by_trim():
    """Blocks go back, the committed ones stay, and another reservation gets the same slots."""
    cache = KVCache(SHAPE, 4)
    stretch = Stretch([1, 2])
    first = cache.reserve([stretch], [Proposal.chain([3] * 60, "test")])
    cache.trim(stretch.sequence)
    assert cache.pool.free == 4
    assert stretch.sequence.blocks == []
    second = cache.reserve([stretch], [Proposal.chain([3] * 60, "test")])
    assert np.array_equal(first.slots, second.slots)


def test_release_gives_everything_back():
    cache = KVCache(SHAPE, 4)
    stretch = Stretch(range(40))
    cache.reserve([stretch], [EMPTY])
    cache.commit(stretch.sequence, 40, ())
    assert cache.pool.free == 2
    assert stretch.sequence.length == 40
    cache.release(stretch.sequence)
    assert cache.pool.free == 4
    assert stretch.sequence.length == 0
    assert stretch.sequence.table.tolist() == []
    cache.pool.check()


def test_the_table_grows_with_the_blocks():
    sequence = KVSequence()
    for block in range(100):
        sequence.extend([block])
        assert sequence.table.tolist() == sequence.blocks == list(range(block + 1))


def test_storage_is_aligned_and_laid_out_as_promised():
    cache = KVCache(SHAPE, 5)
    assert cache.keys.shape == (2, 1, RUN, 3, 2, BLOCK)
    assert cache.values.shape == (2, 1, RUN, 3, BLOCK // 2, 4, 2)
    assert cache.scales.shape == (2, 1, RUN, 3, 2, BLOCK)
    assert (cache.keys.dtype, cache.values.dtype, cache.scales.dtype) == (np.int32, np.int16, np.float32)
    assert cache.memory.shape == (1, 2, 3, RUN, (4 + 2) * BLOCK)
    assert cache.memory.flags.c_contiguous
    assert cache.memory.ctypes.data % 64 == 0
    for number, array in enumerate((cache.keys, cache.values, cache.scales), 1):
        assert np.shares_memory(array, cache.memory)
        array.fill(number)
    words = cache.memory[0, 1, 2, 4]
    assert (words[: 2 * BLOCK] == 1).all()
    assert (words[2 * BLOCK : 4 * BLOCK].view(np.int16) == 2).all()
    assert (words[4 * BLOCK :].view(np.float32) == 3).all()
    assert cache.positions == 5 * BLOCK


@st.composite
def trees_with_a_path(draw):
    """Parents of a tree of up to 40 nodes, and a path from the root."""
    count = draw(st.integers(0, 40))
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(count)]
    path: list[int] = []
    while children := [j for j in range(count) if parents[j] == (path[-1] if path else ROOT)]:
        if draw(st.booleans()) and draw(st.booleans()):
            break
        path.append(draw(st.sampled_from(children)))
    return parents, path


def check_commit(parents, path, committed):
    """A path is committed after some tokens; the cache then holds the rows of exactly these, in order."""
    cache = KVCache(SHAPE, 6)
    stretch = Stretch([1] * committed)
    rows = cache.reserve([stretch], [tree([0] * len(parents), parents)])
    write(cache, rows)
    cache.commit(stretch.sequence, committed, path)
    assert stretch.sequence.length == committed + len(path)
    assert read(cache, stretch.sequence) == [*range(1, committed + 1), *(committed + 1 + node for node in path)]
    assert len(stretch.sequence.blocks) == -(-stretch.sequence.length // BLOCK) == cache.pool.size - cache.pool.free


@given(trees_with_a_path(), st.integers(1, 70))
def test_a_commit_moves_the_accepted_path_to_its_positions(tree_and_path, committed):
    check_commit(*tree_and_path, committed)


def test_a_commit_that_forgets_to_move_would_be_seen(monkeypatch):
    """Negative control."""

    def commit(self, sequence, end, path):
        sequence.length = end + len(path)
        self.trim(sequence)

    monkeypatch.setattr(KVCache, "commit", commit)
    check_commit([ROOT, 0], [0, 1], 3)
    with pytest.raises(AssertionError):
        check_commit([ROOT, ROOT], [1], 3)
