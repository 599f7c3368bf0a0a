"""Measures what passes of a model cost on this machine: a few seconds, more for a large model.

costs = measure(model)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from outrider.cache import BLOCK, KVCache
from outrider.models.base import CausalLM
from outrider.policy.costs import Costs
from outrider.types import Rows

ROWS = (1, 2, 3, 4, 6, 8, 9, 12, 16)
CONTEXTS = (128, 1024, 4096)

_SECONDS = 2.5
_ROUNDS = range(3, 12)  # at least, and at most
_PASSES = 3  # in a row
_SCRATCH = 2**26  # bytes of keys and values, so many that no processor keeps them in its caches


def measure(
    model: CausalLM, *, clock: Callable[[], float] = time.perf_counter, progress: Callable[[], None] = lambda: None
) -> Costs:
    """Time passes of several row counts at several context lengths, in turn.

    One row more or less each time, up and down: after passes of many rows a processor's clocks are others for a while
    (on an Emerald Rapids a pass of one row then takes half as long again, for some twenty passes), and decoding does
    not go from sixteen rows to one.

    The model's own state is not touched: the passes run on a cache of their own. `progress` is called after each round.
    """
    counts = tuple(n for n in ROWS if n <= model.context_length)
    longest = model.context_length - counts[-1]
    contexts = tuple(sorted({min(context, longest) for context in CONTEXTS}))
    cache = _scratch(model, contexts[-1] + counts[-1])
    walk = [(i, j) for i in range(len(contexts)) for j in range(len(counts))[:: -1 if i % 2 else 1]]
    passes = {(i, j): _rows(counts[j], contexts[i], cache) for i, j in walk}
    times: list[list[list[float]]] = [[[] for _ in counts] for _ in contexts]
    start = clock()
    for j in range(len(counts)):
        model.forward(passes[len(contexts) - 1, j], cache)  # touches what is touched for the first time
    for number in range(_ROUNDS.stop - 1):
        for i, j in walk[:: -1 if number % 2 else 1]:
            for _ in range(_PASSES):
                begun = clock()
                model.forward(passes[i, j], cache)
                times[i][j].append(clock() - begun)
        progress()
        if number + 1 >= _ROUNDS.start and clock() - start > _SECONDS:
            break
    return Costs(counts, contexts, tuple(_ascending([_undisturbed(s) for s in mine]) for mine in times))


def _undisturbed(seconds: Sequence[float]) -> float:
    """The lower quartile: whoever else uses the machine only ever adds time."""
    return statistics.quantiles(seconds, n=4)[0]


def _ascending(seconds: Sequence[float]) -> tuple[float, ...]:
    """Where more rows seem to take less time, that is chance: the mean of those that are out of order stands for each.

    (Pool adjacent violators: the closest ascending sequence. Ayer et al. 1955.)
    """
    pools: list[list[float]] = []
    for value in seconds:
        pools.append([value])
        while len(pools) > 1 and statistics.fmean(pools[-2]) > statistics.fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    return tuple(max(statistics.fmean(pool), 1e-9) for pool in pools for _ in pool)


def _scratch(model: CausalLM, positions: int) -> KVCache:
    """A cache whose memory is really there; where it is smaller than asked for, sequences go round in it."""
    shape = model.kv_shape
    block = 2 * 2 * shape.layers * shape.heads * shape.head_dim * BLOCK
    cache = KVCache(shape, min(KVCache.blocks_for(positions), max(_SCRATCH // block, 1 + ROWS[-1])))
    cache.keys.fill(1)
    cache.values.fill(1)
    cache.scales.fill(1 / 16)
    return cache


def _rows(count: int, context: int, cache: KVCache) -> Rows:
    """A chain of so many rows after so many tokens; all logits are wanted, as in verification."""
    positions = np.arange(context, context + count, dtype=np.int32)
    table = np.arange(KVCache.blocks_for(context + count), dtype=np.int32) % cache.pool.size
    return Rows(
        tokens=np.zeros(count, np.int32),
        positions=positions,
        slots=table[positions // BLOCK] * BLOCK + positions % BLOCK,
        requests=np.zeros(count, np.int32),
        tables=table[np.newaxis],
        tail_starts=positions + 1,
        tail_offsets=np.zeros(count + 1, np.int32),
        tail_slots=np.zeros(0, np.int32),
        wanted=np.arange(count, dtype=np.int32),
    )
