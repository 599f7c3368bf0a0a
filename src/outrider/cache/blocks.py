"""Who holds which blocks of the KV cache: the one ledger that says who may write where."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class BlockPool:
    """Blocks 0 .. size - 1. A block is held by one sequence or by several, or it is idle, or free.

    An idle block is held by nobody, but its content is kept (`keep`), as it may be wanted again. It can be taken like a
    free one, when there are no others, the least recently used first. Of the free blocks, the one freed last is taken
    first, while its memory is warm.

    evicted  told of each idle block that is taken.
    """

    def __init__(self, size: int, evicted: Callable[[int], None] = lambda block: None) -> None:
        self.size = size
        self._free = list(range(size - 1, -1, -1))
        self._holders = [0] * size
        self._kept = bytearray(size)
        self._idle: dict[int, None] = {}  # least recently used first
        self._evicted = evicted

    @property
    def free(self) -> int:
        """Number of blocks that can be taken, idle ones included."""
        return len(self._free) + len(self._idle)

    @property
    def idle(self) -> int:
        """Number of blocks that nobody holds, and whose content is kept until they are needed."""
        return len(self._idle)

    @property
    def used(self) -> int:
        """Number of blocks that are held."""
        return self.size - self.free

    def holders(self, block: int) -> int:
        """How many sequences hold the block."""
        return self._holders[block]

    def kept(self, block: int) -> bool:
        """Whether the content of the block is kept."""
        return bool(self._kept[block])

    def take(self, count: int) -> list[int]:
        """Take `count` blocks, or none: raises RuntimeError if fewer are free (whoever schedules must ask first)."""
        if count > self.free:
            raise RuntimeError(f"KV cache: {count} blocks wanted, {self.free} of {self.size} are free")
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._holders[block] = 1
        return blocks

    def share(self, block: int) -> None:
        """Hold a block whose content is kept, beside others who may hold it. Nobody may write to it."""
        if not self._kept[block]:
            raise RuntimeError(f"KV cache: block {block} is shared, but its content is not kept")
        self._idle.pop(block, None)
        self._holders[block] += 1

    def give_back(self, blocks: Sequence[int]) -> None:
        """Let go of the blocks of a sequence, the last one first, so that the end of a text is evicted before its
        beginning. Raises RuntimeError at a block that nobody holds."""
        for block in reversed(blocks):
            if not self._holders[block]:
                raise RuntimeError(f"KV cache: block {block} is given back, but nobody holds it")
            self._holders[block] -= 1
            if not self._holders[block]:
                if self._kept[block]:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    def keep(self, block: int) -> None:
        """From now on the content of this block, which is held, never changes, and is kept when nobody holds it."""
        self._kept[block] = True

    def touch(self, block: int) -> None:
        """An idle block was used: of all of them it goes last."""
        if block in self._idle:
            del self._idle[block]
            self._idle[block] = None

    def discard(self, block: int) -> None:
        """The content of an idle block is not wanted any more."""
        del self._idle[block]
        self._kept[block] = False
        self._free.append(block)

    def check(self) -> None:
        """Assert that every block is held, idle or free, and one of them only."""
        assert len(self._free) == len(set(self._free)), "a block is listed as free twice"
        assert not any(self._holders[block] for block in self._free), "a block is both free and held"
        assert not any(self._holders[block] for block in self._idle), "a block is both idle and held"
        assert not any(self._kept[block] for block in self._free), "a block is free, but its content is kept"
        assert all(self._kept[block] for block in self._idle), "a block is idle, but its content is not kept"
        assert len(self._free) + len(self._idle) + sum(map(bool, self._holders)) == self.size, "a block is lost"

    def _evict(self) -> int:
        block = next(iter(self._idle))
        del self._idle[block]
        self._kept[block] = False
        self._evicted(block)
        return block
