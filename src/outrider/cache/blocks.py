"""Which blocks of the KV cache are free: the one ledger that says who may write where."""

from __future__ import annotations

from collections.abc import Sequence


class BlockPool:
    """Blocks 0 .. size - 1, each free or taken. The block freed last is taken first, while its memory is warm."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size - 1, -1, -1))
        self._taken = bytearray(size)

    @property
    def free(self) -> int:
        """Number of free blocks."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Take `count` blocks, or none: raises RuntimeError if fewer are free (whoever schedules must ask first)."""
        if count > len(self._free):
            raise RuntimeError(f"KV cache: {count} blocks wanted, {len(self._free)} of {self.size} are free")
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._taken[block] = True
        return blocks

    def give_back(self, blocks: Sequence[int]) -> None:
        """Free blocks, the last one first. Raises RuntimeError, and changes no other block, if one is free already."""
        for block in reversed(blocks):
            if not self._taken[block]:
                raise RuntimeError(f"KV cache: block {block} is freed, but it is free already")
            self._taken[block] = False
            self._free.append(block)

    def check(self) -> None:
        """Assert that every block is either free, and listed once, or taken."""
        assert len(self._free) == len(set(self._free)), "a block is listed as free twice"
        assert not any(self._taken[block] for block in self._free), "a block is both free and taken"
        assert len(self._free) + sum(self._taken) == self.size, "a block is neither free nor taken"
