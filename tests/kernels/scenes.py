"""Attention over a cache with known contents: requests with stored positions, and new rows as a chain or a tree.

A row's query, key and value depend on its token alone, and what is stored depends on the request's seed and the
position, so the same path has the same numbers wherever and with whatever it is computed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.cache import KVCache, KVSequence
from outrider.kernels.reference import store
from outrider.models.base import CausalLM, KVShape
from outrider.program import Program
from outrider.types import EMPTY, ROOT, FloatArray, Proposal, Rows
from outrider.weights.gguf import TensorType
from tests.kernels.workbench import Stretch, fragment, lay_out, path, random, read, run, weight

VOCABULARY = 64
LAYER = 1


@dataclass(frozen=True)
class Heads:
    """The shape of an attention layer."""

    heads: int
    kv_heads: int
    head_dim: int

    def __str__(self) -> str:
        return f"{self.heads} on {self.kv_heads} of {self.head_dim}"

    @property
    def cache(self) -> KVShape:
        return KVShape(layers=2, heads=self.kv_heads, head_dim=self.head_dim)

    def program(self, *, scale_queries: float = 1.0, projection: TensorType | None = None) -> Program:
        """Attention in the second of two layers; values are columns in the midst of their buffer.

        With `projection`, a linear layer of 20 outputs follows, whose weight is of that type.
        """
        widths = (self.heads * self.head_dim, self.kv_heads * self.head_dim)
        qk = random(0, VOCABULARY, sum(widths))
        qk[:, : widths[0]] *= np.float32(scale_queries)
        program = Program()
        attended = program.attention(
            program.embed(weight("qk", qk)),
            program.embed(weight("v", random(1, VOCABULARY, widths[1] + 7))),
            value_column=3,
            layer=LAYER,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
        )
        if projection is not None:
            attended = program.linear(attended, weight("projection", random(2, 20, widths[0]), projection))
        program.output("logits", attended)
        return program


@dataclass(frozen=True)
class Text:
    """A request: `context` positions are stored; the first token comes after them, the others hang on it as a tree.

    parents[j] is the parent of tokens[j + 1], as in a Proposal; without parents the tokens are a chain.
    """

    seed: int
    context: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...] = ()

    def path(self, row: int) -> Text:
        """The same request with only the tokens that lead to a row, as a chain."""
        if not self.parents:
            return Text(self.seed, self.context, self.tokens[: row + 1])
        nodes = path(self.parents, row - 1)
        return Text(self.seed, self.context, (self.tokens[0], *(self.tokens[node + 1] for node in nodes)))


def place(texts: Sequence[Text], shape: KVShape, *, fragmented: bool = True) -> tuple[KVCache, Rows]:
    """A cache that holds the stored positions, NaN and the extremest codes else, and the rows of one pass over the texts."""
    cache = KVCache(shape, 1 + sum(KVCache.blocks_for(text.context + len(text.tokens)) + 1 for text in texts))
    cache.keys.view(np.int16)[:] = cache.values[:] = -(2**15)
    cache.scales[:] = np.nan
    if fragmented:
        fragment(cache)
    stretches = []
    proposals = []
    for text in texts:
        sequence = KVSequence()
        sequence.extend(cache.pool.take(cache.blocks_for(text.context)))
        sequence.length = text.context
        store_context(cache, sequence, text)
        committed = text.tokens[:1] if text.parents else text.tokens
        stretches.append(Stretch(sequence, list(committed)))
        drafted = text.tokens[1:]
        ones = (1.0,) * len(drafted)
        proposals.append(Proposal(drafted, text.parents, "", ones, (None,) * len(drafted)) if text.parents else EMPTY)
    return cache, lay_out(cache, stretches, proposals)


def store_context(cache: KVCache, sequence: KVSequence, text: Text) -> None:
    """Random keys and values in the layer that is read, at the positions before the first token."""
    if text.context:
        *_, heads, _, head_dim, _ = cache.values.shape
        keys, values = stored(text.seed, heads, head_dim)
        slots = np.array(sequence.slots(range(text.context)), np.int32)
        store(cache, LAYER, slots, keys[: text.context], values[: text.context])


@functools.cache
def stored(seed: int, heads: int, head_dim: int) -> FloatArray:
    """Keys, then values, of 700 positions."""
    return random(100 + seed, 2, 700, heads, head_dim)


def attend(model: CausalLM, texts: Sequence[Text], *, fragmented: bool = True) -> list[FloatArray]:
    """One pass; the attended values of each text's rows."""
    cache, rows = place(texts, model.kv_shape, fragmented=fragmented)
    return np.split(run(model, rows, cache), np.cumsum([len(text.tokens) for text in texts])[:-1])


def one_by_one(model: CausalLM, text: Text) -> FloatArray:
    """A chain, one row per pass, as plain decoding computes it."""
    assert not text.parents
    cache, rows = place([Text(text.seed, text.context, text.tokens[:1])], model.kv_shape)
    sequence = KVSequence()
    sequence.extend([int(block) for block in rows.tables[0]])
    sequence.length = text.context
    return read(model, cache, sequence, text.tokens, 1)


TREE = (ROOT, 0, ROOT, 2, 1, 3, 3, ROOT)
"""Siblings at three depths; node 0 is stored at its own position, and no other but its child."""
