"""Keys and values of all sequences in blocks of 32 positions, and the rows of a forward pass laid out on them.

One step is `reserve`, the forward pass, `commit`; `trim` undoes what was reserved and not committed.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from outrider.cache.blocks import BlockPool
from outrider.models.base import KVShape
from outrider.types import ROOT, IntArray, Proposal, Rows

BLOCK = 32
"""Positions per block."""

_NO_RESERVE = 0x4000
"""Linux's MAP_NORESERVE, which Python names from 3.13 on: memory is promised when it is touched, not before."""

HalfArray = npt.NDArray[np.uint16]
"""Half-precision numbers as raw bits: NumPy's own float16 arithmetic is slow, and nothing here computes."""


class KVSequence:
    """Where the keys and values of one sequence are stored.

    length  positions 0 .. length - 1 are computed and committed.
    blocks  the blocks that hold them, in order; during a step also those reserved for its rows.
    """

    __slots__ = ("_table", "blocks", "length")

    def __init__(self) -> None:
        self.length = 0
        self.blocks: list[int] = []
        self._table: IntArray = np.zeros(8, np.int32)

    @property
    def table(self) -> IntArray:
        """The blocks as an array; int32, [len(blocks)]."""
        return self._table[: len(self.blocks)]

    def extend(self, blocks: Sequence[int]) -> None:
        """Append blocks. The table grows geometrically, so this takes constant time per block."""
        held = len(self.blocks)
        self.blocks += blocks
        if len(self.blocks) > len(self._table):
            table = np.zeros(2 * len(self.blocks), np.int32)
            table[:held] = self._table[:held]
            self._table = table
        self._table[held : len(self.blocks)] = blocks

    def slots(self, indices: Sequence[int]) -> list[int]:
        """The slots of storage indices: index i is place i % BLOCK of block i // BLOCK of the sequence."""
        blocks = self.blocks
        return [blocks[i // BLOCK] * BLOCK + i % BLOCK for i in indices]


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
    """The keys and values of all sequences, as raw half-precision bits.

    keys    uint16, [layers, blocks, heads, head_dim, BLOCK]: transposed inside a block, as attention reads them.
    values  uint16, [layers, blocks, heads, BLOCK, head_dim].

    The memory is touched, and thus really used, only where something is stored.
    """

    def __init__(self, shape: KVShape, blocks: int) -> None:
        self.keys = _zeros((shape.layers, blocks, shape.heads, shape.head_dim, BLOCK))
        self.values = _zeros((shape.layers, blocks, shape.heads, BLOCK, shape.head_dim))
        self.pool = BlockPool(blocks)

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
        return max(0, self.blocks_for(positions) - len(sequence.blocks))

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
            start, end = sequence.length, sequence.length + len(committed)
            last = end + len(proposal)
            sequence.extend(self.pool.take(self.missing(sequence, last)))
            if stretch.wanted:
                wanted += range(len(tokens) + len(committed) - 1, len(tokens) + last - start)
            tokens += committed
            tokens += proposal.tokens
            slots += sequence.slots(range(start, last))
            requests += [number] * (last - start)
            straight = _straight(proposal.parents)
            positions += range(start, end + straight)
            tail_starts += range(start + 1, end + straight + 1)
            tail_offsets += [len(tail_slots)] * (end + straight - start)
            if straight < len(proposal):
                for path in _paths(proposal.parents)[straight:]:
                    positions.append(end - 1 + len(path))
                    tail_starts.append(end)
                    tail_slots += sequence.slots([end + node for node in path])
                    tail_offsets.append(len(tail_slots))
        if len(work) == 1:
            tables = work[0].sequence.table[np.newaxis]
        else:
            tables = np.zeros((len(work), max((len(s.sequence.blocks) for s in work), default=0)), np.int32)
            for table, stretch in zip(tables, work, strict=True):
                table[: len(stretch.sequence.blocks)] = stretch.sequence.table
        per_row = np.array((tokens, positions, slots, requests, tail_starts), np.int32)  # one array is faster than five
        return Rows(
            tokens=per_row[0],
            positions=per_row[1],
            slots=per_row[2],
            requests=per_row[3],
            tables=tables,
            tail_starts=per_row[4],
            tail_offsets=np.array(tail_offsets, np.int32),
            tail_slots=np.array(tail_slots, np.int32),
            wanted=np.array(wanted, np.int32),
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
            source, target = (np.divmod(sequence.slots(indices), BLOCK) for indices in zip(*moved, strict=True))
            self.keys[:, target[0], :, :, target[1]] = self.keys[:, source[0], :, :, source[1]]
            self.values[:, target[0], :, target[1]] = self.values[:, source[0], :, source[1]]
        sequence.length = end + len(path)
        self.trim(sequence)

    def trim(self, sequence: KVSequence) -> None:
        """Free the blocks past the committed length: whatever was reserved for a step and not kept."""
        kept = self.blocks_for(sequence.length)
        if kept < len(sequence.blocks):
            self.pool.give_back(sequence.blocks[kept:])
            del sequence.blocks[kept:]

    def release(self, sequence: KVSequence) -> None:
        """Free everything the sequence holds; it is empty afterwards."""
        sequence.length = 0
        self.trim(sequence)


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


def _zeros(shape: tuple[int, ...]) -> HalfArray:
    """Zeros whose pages the system hands out on first touch, small ones: NumPy's own zeros ask for large pages, which
    would clear 2 MB per layer before the first token and hold them for ever so short a text."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    memory = mmap.mmap(-1, math.prod(shape) * 2, flags=flags)
    return np.frombuffer(memory, np.uint16).reshape(shape)
