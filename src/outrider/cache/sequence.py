"""Where the keys and values of one sequence are: its block table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.cache.prefix import Node
from outrider.types import IntArray

BLOCK = 32
"""Positions per block."""


class KVSequence:
    """Where the keys and values of one sequence are stored.

    length  positions 0 .. length - 1 are computed and committed.
    blocks  the blocks that hold them, in order; during a step also those reserved for its rows.
    path    the nodes of the first blocks in the prefix tree: they may be shared, and are full, so rows never touch
            them. The other blocks are the sequence's own.
    """

    __slots__ = ("_table", "blocks", "length", "path")

    def __init__(self) -> None:
        self.length = 0
        self.blocks: list[int] = []
        self.path: list[Node] = []
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

    def replace(self, place: int, block: int) -> None:
        """Put another block at a place."""
        self.blocks[place] = self._table[place] = block

    def slots(self, indices: Sequence[int]) -> list[int]:
        """The slots of storage indices: index i is place i % BLOCK of block i // BLOCK of the sequence."""
        blocks = self.blocks
        return [blocks[i // BLOCK] * BLOCK + i % BLOCK for i in indices]
