"""A target that computes nothing but a function of what it sees, so that its law is known exactly.

It keeps token and position of each row in the real KV cache and reads every path back from there, as attention would:
a wrong slot, a wrong tail, a stale or wrongly moved entry gives other text, or an AssertionError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from outrider.cache import BLOCK, KVCache, key_places, value_places
from outrider.models.base import KVShape
from outrider.types import FloatArray, Output, Rows

Law = Callable[[tuple[int, ...]], FloatArray]
"""Logits after a path, the tokens from the first of the prompt on; float32, [vocabulary]."""

_ALPHABET = tuple(bytes([byte]) for byte in b"abcdefghijklmnopqrstuvwxyz")

SMALLEST = KVShape(layers=1, heads=1, head_dim=2)


class ScriptedModel:
    """A `CausalLM` whose logits are `law` of a row's path."""

    def __init__(self, law: Law, *, vocabulary: int = 16, context: int = 256, kv_shape: KVShape = SMALLEST) -> None:
        self.law = law
        self.vocabulary_size = vocabulary
        self.context_length = context
        self.kv_shape = kv_shape

    def forward(self, rows: Rows, cache: KVCache) -> Output:
        """Write first, then read: the token as every key, the position as every value."""
        assert len(set(rows.slots.tolist())) == len(rows.slots), "two rows write the same slot"
        cache.keys[key_places(rows.slots)] = rows.tokens[:, None, None, None]
        cache.values[value_places(rows.slots)] = rows.positions[:, None, None, None]
        logits = np.empty((len(rows.wanted), self.vocabulary_size), np.float32)
        for row, path in zip(logits, self.paths(rows, cache), strict=True):
            row[:] = self.law(path)
        return Output(logits)

    def paths(self, rows: Rows, cache: KVCache) -> list[tuple[int, ...]]:
        """The tokens that each wanted row sees, as the cache holds them."""
        if not len(rows.wanted):
            return []
        positions = rows.positions[rows.wanted]
        index = np.arange(positions.max() + 1)
        tables = rows.tables[rows.requests[rows.wanted]]
        slots = tables[:, np.minimum(index // BLOCK, tables.shape[1] - 1)] * BLOCK + index % BLOCK
        for own, row in zip(slots, rows.wanted, strict=True):
            first, last = rows.tail_offsets[row : row + 2]
            if first < last:
                own[rows.tail_starts[row] :][: last - first] = rows.tail_slots[first:last]
        visible = index <= positions[:, None]
        # [wanted, positions, layers, heads, (head_dim)]: every part of an entry must tell the same.
        keys, values = cache.keys[key_places(slots)], cache.values[value_places(slots)]
        tokens, seen = keys[:, :, 0, 0, 0], values[:, :, 0, 0, 0]
        assert (keys == tokens[:, :, None, None, None])[visible].all(), "a part of an entry is another token's"
        assert (values == index[:, None, None, None])[visible].all(), f"rows of positions {positions} see {seen}"
        return [tuple(path[: position + 1]) for path, position in zip(tokens.tolist(), positions.tolist(), strict=True)]


class Letters:
    """A vocabulary of bytes: id 0 is "a", 1 is "b", ...; or whatever `table` says."""

    def __init__(self, table: Sequence[bytes] = _ALPHABET) -> None:
        self.table = table

    def token_bytes(self, token: int) -> bytes:
        """What the token stands for."""
        return self.table[token]
