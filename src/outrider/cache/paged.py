"""Keys and values of all sequences in blocks of 32 positions, and the rows of a forward pass laid out on them.

One step is `reserve`, the forward pass, `commit`; `trim` undoes what was reserved and not committed.

What was computed can be used again: `remember` makes it known by the tokens it was computed from, `adopt` gives it to
a sequence that begins with the same ones. Whole blocks are shared; a sequence that departs from a text inside a block
gets a copy of it, so nobody ever writes to a shared one.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from outrider.cache.blocks import BlockPool
from outrider.cache.prefix import Key, Node, PrefixTree
from outrider.cache.sequence import BLOCK, KVSequence
from outrider.models.base import KVShape
from outrider.types import ROOT, IntArray, Proposal, Rows

RUN = 8
"""Blocks that lie side by side in memory: a segment of attention."""

_NO_RESERVE = 0x4000
"""Linux's MAP_NORESERVE, which Python names from 3.13 on: memory is promised when it is touched, not before."""


class Stretch(Protocol):
    """What a sequence brings to a pass: committed tokens at the positions from `sequence.length` on.

    With `wanted`, they are all there are, and the logits of the last one and of the proposal's nodes are wanted.
    """

    @property
    def sequence(self) -> KVSequence: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def wanted(self) -> bool: ...


class KVCache:
    """The keys and values of all sequences, as 16-bit codes with a scale per key and per value of each head.

    keys    int32, [layers, runs, RUN, heads, head_dim / 2, BLOCK]: two codes a word; block b is (b // RUN, b % RUN).
    values  int16, [layers, runs, RUN, heads, BLOCK / 2, head_dim, 2]: positions t and t + BLOCK / 2 side by side.
    scales  float32, [layers, runs, RUN, heads, 2, BLOCK]: of keys, then of values.

    All are views of one `memory`, int32, [runs, layers, heads, RUN, words of a block and head]: what attention reads of
    a text whose blocks follow one another is in order. Memory is touched, and thus really used, only where something is
    stored.
    """

    def __init__(self, shape: KVShape, blocks: int) -> None:
        words, codes = (shape.head_dim + 2) * BLOCK, shape.head_dim * BLOCK // 2
        self.memory = _zeros((-(-blocks // RUN), shape.layers, shape.heads, RUN, words))
        inside = self.memory.transpose(1, 0, 3, 2, 4)
        places = inside.shape[:-1]
        self.keys = inside[..., :codes].reshape(*places, shape.head_dim // 2, BLOCK)
        values = inside[..., codes : 2 * codes].view(np.int16)
        self.values = values.reshape(*places, BLOCK // 2, shape.head_dim, 2)
        self.scales = inside[..., 2 * codes :].view(np.float32).reshape(*places, 2, BLOCK)
        self.prefixes = PrefixTree(BLOCK)
        self.pool = BlockPool(blocks, self.prefixes.remove)

    @property
    def positions(self) -> int:
        """How many positions it can hold, of all sequences together."""
        return self.pool.size * BLOCK

    @staticmethod
    def blocks_for(positions: int) -> int:
        """How many blocks hold that many positions of one sequence."""
        return -(-positions // BLOCK)

    def missing(self, sequence: KVSequence, positions: int) -> int:
        """How many more blocks the sequence needs to hold that many positions."""
        return max(0, -(-positions // BLOCK) - len(sequence.blocks))

    def reserve(self, work: Sequence[Stretch], proposals: Sequence[Proposal]) -> Rows:
        """Reserve blocks for the stretches and their proposals (one each), and lay out the rows of the pass.

        The token of position p is stored at index p of its sequence; node j at index root + 1 + j, whatever its depth,
        so siblings, which share a position, do not share a slot. Raises RuntimeError if the pool runs out: call
        `trim` then, as after every step.
        """
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        requests: list[int] = []
        tail_starts: list[int] = []
        tail_offsets: list[int] = [0]
        tail_slots: list[int] = []
        wanted: list[int] = []
        for number, (stretch, proposal) in enumerate(zip(work, proposals, strict=True)):
            sequence, committed = stretch.sequence, stretch.tokens
            start = sequence.length
            end = start + len(committed)
            last = end + len(proposal.tokens)
            if missing := self.missing(sequence, last):
                sequence.extend(self.pool.take(missing))
            if stretch.wanted:
                wanted += range(len(tokens) + end - start - 1, len(tokens) + last - start)
            tokens += committed
            tokens += proposal.tokens
            slots += sequence.slots(range(start, last))
            requests += [number] * (last - start)
            straight = end + _straight(proposal.parents) if last > end else end
            positions += range(start, straight)
            tail_starts += range(start + 1, straight + 1)
            tail_offsets += [len(tail_slots)] * (straight - start)
            if straight < last:
                for path in _paths(proposal.parents)[straight - end :]:
                    positions.append(end - 1 + len(path))
                    tail_starts.append(end)
                    tail_slots += sequence.slots([end + node for node in path])
                    tail_offsets.append(len(tail_slots))
        if len(work) == 1:
            tables = sequence.table[np.newaxis]
        else:
            tables = np.zeros((len(work), max((len(s.sequence.blocks) for s in work), default=0)), np.int32)
            for table, stretch in zip(tables, work, strict=True):
                table[: len(stretch.sequence.blocks)] = stretch.sequence.table
        n = len(tokens)
        lists = tokens + positions + slots + requests + tail_starts + tail_offsets + tail_slots + wanted
        packed = np.array(lists, np.int32)  # one array is made faster than eight
        return Rows(
            tokens=packed[:n],
            positions=packed[n : 2 * n],
            slots=packed[2 * n : 3 * n],
            requests=packed[3 * n : 4 * n],
            tables=tables,
            tail_starts=packed[4 * n : 5 * n],
            tail_offsets=packed[5 * n : 6 * n + 1],
            tail_slots=packed[6 * n + 1 : len(packed) - len(wanted)],
            wanted=packed[len(packed) - len(wanted) :],
        )

    def commit(self, sequence: KVSequence, end: int, path: Sequence[int]) -> None:
        """Keep the committed tokens before position `end`, then the nodes of `path`, root to leaf; free the rest.

        end   one past the position of the last computed token that was committed before the step.
        path  the nodes whose tokens were committed and are followed by a committed token: the last token of a run is
              the next step's root, and is computed then.
        """
        moved = [(end + node, end + depth) for depth, node in enumerate(path) if node != depth]
        if moved:
            # Reading comes before writing as a whole, so a place may be both.
            source, target = (sequence.slots(indices) for indices in zip(*moved, strict=True))
            for array in (self.keys, self.scales):
                array[key_places(target)] = array[key_places(source)]
            self.values[value_places(target)] = self.values[value_places(source)]
        sequence.length = end + len(path)
        self.trim(sequence)

    def trim(self, sequence: KVSequence) -> None:
        """Free the blocks past the committed length: whatever was reserved for a step and not kept."""
        kept = self.blocks_for(sequence.length)
        if kept < len(sequence.blocks):
            self.pool.give_back(sequence.blocks[kept:])
            del sequence.blocks[kept:]

    def known(self, keys: Sequence[Key]) -> int:
        """How many of its first positions a new sequence with these keys would adopt."""
        node, count = self.prefixes.root, 0
        while child := self.prefixes.after(node, keys, count):
            node, count = child, count + 1
        start = count * BLOCK
        return start + self.prefixes.nearest(node, keys[start : start + BLOCK])[1]

    def shared(self, keys: Sequence[Key]) -> int:
        """How many blocks that are held by some sequence a new one that begins with these keys would share."""
        node, count = self.prefixes.root, 0
        while (child := self.prefixes.after(node, keys, count)) and self.pool.holders(child.block):
            node, count = child, count + 1
        return count

    def adopt(self, sequence: KVSequence, keys: Sequence[Key]) -> int:
        """Lengthen a sequence by what is known of a text; returns by how many positions.

        keys  what the KV of the positions 0, 1, ... depends on, as for `remember`: for a target the tokens, but for the
              last one at least, which must be computed for the sake of its logits.

        Call it between steps. Blocks of the sequence's own that are known as a whole by now are given back.
        """
        before, path = sequence.length, sequence.path
        while child := self.prefixes.after(self._end(sequence), keys, len(path)):
            self._share(sequence, child)
        start = len(path) * BLOCK
        sequence.length = max(before, start)
        nearest, common = self.prefixes.nearest(self._end(sequence), keys[start : start + BLOCK])
        if nearest and start + common > sequence.length:
            self._copy(sequence, nearest, common)
        return sequence.length - before

    def remember(self, sequence: KVSequence, keys: Sequence[Key]) -> None:
        """Let others adopt the full blocks of a sequence; keys: of its positions, as far as they may be known."""
        path = sequence.path
        for place in range(len(path), min(sequence.length, len(keys)) // BLOCK):
            if known := self.prefixes.after(self._end(sequence), keys, place):
                self._share(sequence, known)  # another sequence was faster; the bits are the same
            else:
                own = tuple(keys[place * BLOCK : (place + 1) * BLOCK])
                path.append(self._add(self._end(sequence), own, sequence.blocks[place]))

    def release(self, sequence: KVSequence, keys: Sequence[Key] = ()) -> None:
        """Let go of everything the sequence holds; it is empty afterwards. What it computed of `keys` is remembered."""
        self.remember(sequence, keys)
        start = len(sequence.path) * BLOCK
        if rest := tuple(keys[start : sequence.length]):
            nearest, common = self.prefixes.nearest(self._end(sequence), rest)
            if nearest and common == len(rest):
                self.pool.touch(nearest.block)
            else:
                self._add(self._end(sequence), rest, sequence.blocks[len(sequence.path)])
        self.pool.give_back(sequence.blocks)
        sequence.length = 0
        sequence.blocks.clear()
        sequence.path.clear()

    def check(self, sequences: Mapping[KVSequence, Sequence[Key]]) -> None:
        """Assert that all is in order, between steps; sequences: all there are, and what they let others know."""
        holders = [0] * self.pool.size
        for sequence, keys in sequences.items():
            assert len(sequence.blocks) == self.blocks_for(sequence.length), "blocks do not follow the length"
            assert sequence.table.tolist() == sequence.blocks, "table and blocks differ"
            assert len(sequence.path) == min(sequence.length, len(keys)) // BLOCK, "a full block is not remembered"
            shared = len(sequence.path)
            assert [node.block for node in sequence.path] == sequence.blocks[:shared], "path and blocks differ"
            assert [key for node in sequence.path for key in node.keys] == list(keys[: shared * BLOCK]), (
                "a block of another text"
            )
            ancestors = [self.prefixes.root, *sequence.path]
            assert all(node.parent is parent for parent, node in pairwise(ancestors)), "a block after another text"
            assert not any(self.pool.kept(block) for block in sequence.blocks[shared:]), "rows go to a shared block"
            for block in sequence.blocks:
                holders[block] += 1
        assert holders == [self.pool.holders(block) for block in range(self.pool.size)], "a block leaked, or two own it"
        assert sorted(node.block for node in self.prefixes) == [
            block for block in range(self.pool.size) if self.pool.kept(block)
        ], "pool and prefix tree differ on what is kept"
        self.pool.check()
        self.prefixes.check()

    def _end(self, sequence: KVSequence) -> Node:
        """The last node of a sequence's path."""
        return sequence.path[-1] if sequence.path else self.prefixes.root

    def _share(self, sequence: KVSequence, node: Node) -> None:
        """Append a node to the path of a sequence; a block of its own that has its place goes back."""
        self.pool.share(node.block)
        place = len(sequence.path)
        if place < len(sequence.blocks):
            self.pool.give_back(sequence.blocks[place : place + 1])
            sequence.replace(place, node.block)
        else:
            sequence.extend([node.block])
        sequence.path.append(node)

    def _copy(self, sequence: KVSequence, node: Node, common: int) -> None:
        """Copy the first positions of a node's block to the block after the path, if there is one to write to."""
        end = len(sequence.path)
        self.pool.touch(node.block)
        if end == len(sequence.blocks):
            if not self.pool.free:
                return
            sequence.extend(self.pool.take(1))  # which may be the node's own, with what is in it
        target = sequence.blocks[end]
        (to, at), (source, place) = divmod(target, RUN), divmod(node.block, RUN)
        self.memory[to, :, :, at] = self.memory[source, :, :, place]  # what is past the first positions is not seen
        sequence.length = end * BLOCK + common

    def _add(self, parent: Node, keys: tuple[Key, ...], block: int) -> Node:
        """Make a block known, and forget those that hold only the beginning of it."""
        for length in range(1, len(keys)):
            if shorter := parent.children.get(keys[:length]):
                self.prefixes.remove(shorter.block)
                self.pool.discard(shorter.block)
        self.pool.keep(block)
        return self.prefixes.add(parent, keys, block)


def _straight(parents: Sequence[int]) -> int:
    """How many of the first nodes form a chain from the root: exactly these are stored at their own positions."""
    for node, parent in enumerate(parents):
        if parent != node - 1:
            return node
    return len(parents)


def _paths(parents: Sequence[int]) -> list[list[int]]:
    """The nodes from the first after the root to each node, itself included."""
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([node] if parent == ROOT else [*paths[parent], node])
    return paths


def key_places(slots: Sequence[int] | IntArray) -> tuple[slice | IntArray, ...]:
    """Index into `KVCache.keys` and `scales`; what it selects is [slots, layers, heads, head_dim / 2 or 2]."""
    block, place = np.divmod(slots, BLOCK)
    run, block = np.divmod(block, RUN)
    return slice(None), run, block, slice(None), slice(None), place


def value_places(slots: Sequence[int] | IntArray) -> tuple[slice | IntArray, ...]:
    """Index into `KVCache.values`; what it selects is [slots, layers, heads, head_dim]."""
    block, place = np.divmod(slots, BLOCK)
    run, block = np.divmod(block, RUN)
    half, word = np.divmod(place, BLOCK // 2)
    return slice(None), run, block, slice(None), word, slice(None), half


def _zeros(shape: tuple[int, ...]) -> IntArray:
    """Zeros whose pages the system hands out on first touch, small ones: NumPy's own zeros ask for large pages, which
    would clear 2 MB per layer before the first token and hold them for ever so short a text."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    memory = mmap.mmap(-1, math.prod(shape) * 4, flags=flags)
    return np.frombuffer(memory, np.int32).reshape(shape)
