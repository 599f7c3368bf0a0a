"""Attention computes, on every kernel set, what the NumPy reference computes: for chains and trees, whatever the
context, the heads and the places of the blocks; and it writes the new keys and values, and nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from outrider.cache import KVCache
from outrider.program import Buffer, Program
from outrider.types import FloatArray, Rows
from outrider.weights.gguf import TensorType
from tests.kernels.scenes import LAYER, TREE, VOCABULARY, Heads, Text, place
from tests.kernels.workbench import KERNELS, native, random, record, reference, run, weight

SHAPES = (
    Heads(1, 1, 16),
    Heads(2, 2, 64),
    Heads(4, 2, 32),
    Heads(3, 1, 64),
    Heads(9, 3, 64),
    Heads(4, 1, 128),
    Heads(6, 3, 80),
)
CONTEXTS = (0, 1, 30, 31, 32, 33, 254, 255, 256, 257, 511, 512, 513, 700)
"""Positions stored before the first row: around the ends of blocks (32) and of segments (256)."""

RAGGED = (Text(0, 40, (1, 2)), Text(1, 0, (3,)), Text(2, 700, (4, 5, 6, 7)), Text(3, 255, (8,)), Text(4, 31, (9,) * 9))
TREES = tuple(Text(n, context, tuple(range(10, 19)), TREE) for n, context in enumerate((0, 27, 30, 255, 300, 511)))
SCENES = {
    "chains": tuple(Text(n, context, (1, 2, 3)) for n, context in enumerate(CONTEXTS)),
    "one row": (Text(0, 600, (1,)),),
    "a long chunk": (Text(0, 20, tuple(i % 60 for i in range(300))),),
    "trees": TREES,
    "one tree": TREES[-1:],
    "all at once": (*RAGGED, *TREES),
}

by_kernels = pytest.mark.parametrize("kernels", KERNELS)
by_scene = pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)


@functools.cache
def expected(heads: Heads, scene: tuple[Text, ...]) -> tuple[FloatArray, KVCache]:
    """What the reference computes, and the cache as it leaves it."""
    cache, rows = place(scene, heads.cache)
    return run(reference(heads.program(), heads.cache), rows, cache), cache


def assert_close(actual: FloatArray, expected: FloatArray) -> None:
    """The reference computes to the bit what is rounded to codes, so only the order of sums differs."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5, equal_nan=False)


@by_scene
@pytest.mark.parametrize("heads", SHAPES, ids=str)
@by_kernels
def test_attention_agrees_with_the_reference(kernels: str, heads: Heads, scene: tuple[Text, ...]) -> None:
    cache, rows = place(scene, heads.cache)
    actual = run(native(heads.program(), kernels, shape=heads.cache), rows, cache)
    oracle, oracle_cache = expected(heads, scene)
    assert_close(actual, oracle)
    np.testing.assert_array_equal(cache.keys, oracle_cache.keys)
    np.testing.assert_array_equal(cache.values, oracle_cache.values)


@by_kernels
def test_attention_agrees_when_few_positions_have_all_the_weight(kernels: str) -> None:
    heads, scene = Heads(6, 3, 64), SCENES["all at once"]
    program = heads.program(scale_queries=30.0)
    cache, rows = place(scene, heads.cache)
    oracle_cache, _ = place(scene, heads.cache)
    actual = run(native(program, kernels, shape=heads.cache), rows, cache)
    assert_close(actual, run(reference(program, heads.cache), rows, oracle_cache))


@pytest.mark.parametrize("kind", [TensorType.Q4_0, TensorType.F32])
@pytest.mark.parametrize("heads", [Heads(2, 1, 16), Heads(6, 2, 16), *SHAPES[1:4]], ids=str)
@by_kernels
def test_a_layer_after_attention_reads_what_was_attended(kernels: str, heads: Heads, kind: TensorType) -> None:
    """Where the layer rounds its inputs, one at the edge of two codes may fall to either side, in a few rows."""
    program = heads.program(projection=kind)
    for threads, name in ((1, "one tree"), (2, "one tree"), (2, "a long chunk"), (3, "all at once")):
        cache, rows = place(SCENES[name], heads.cache)
        oracle_cache, _ = place(SCENES[name], heads.cache)
        actual = run(native(program, kernels, threads, heads.cache), rows, cache)
        errors = np.abs(actual - run(reference(program, heads.cache), rows, oracle_cache)).max(axis=1)
        assert np.median(errors) < 1e-5
        assert errors.max() < (3e-5 if kind == TensorType.F32 else 0.05)


def keys_are_values(program: Program, heads: Heads) -> Buffer:
    x = program.embed(weight("x", random(0, VOCABULARY, (heads.heads + heads.kv_heads) * heads.head_dim)))
    return attend_to(program, heads, x, x)


def gates_are_values(program: Program, heads: Heads) -> Buffer:
    width = (heads.heads + heads.kv_heads) * heads.head_dim
    x = program.embed(weight("x", random(0, VOCABULARY, 64)))
    gate_up = program.linear(x, weight("gate", random(1, width, 64)), weight("up", random(2, width, 64)))
    return attend_to(program, heads, program.swiglu(gate_up), gate_up)


def attend_to(program: Program, heads: Heads, qk: Buffer, v: Buffer) -> Buffer:
    shape = {"heads": heads.heads, "kv_heads": heads.kv_heads, "head_dim": heads.head_dim}
    return program.attention(qk, v, value_column=0, layer=LAYER, **shape)


@pytest.mark.parametrize("build", [keys_are_values, gates_are_values])
@by_kernels
def test_values_may_be_made_together_with_keys(kernels: str, build: Callable[[Program, Heads], Buffer]) -> None:
    """The values that a thread stores with its keys are then made by other threads."""
    heads, scene = Heads(3, 1, 32), SCENES["a long chunk"]
    program = record(lambda p: build(p, heads))
    cache, rows = place(scene, heads.cache)
    oracle = run(reference(program, heads.cache), rows, cache)
    for threads in (1, 2, 3) * 5:
        cache, rows = place(scene, heads.cache)
        errors = np.abs(run(native(program, kernels, threads, heads.cache), rows, cache) - oracle)
        assert errors.max() < 1e-5 * np.abs(oracle).max()


def swapped_tail(rows: Rows) -> Rows:
    """A row of the tree sees another node of the tree as its ancestor."""
    tail = rows.tail_slots.copy()
    tail[rows.tail_offsets[-1] - 1] -= 1
    return replace(rows, tail_slots=tail)


def one_block_late(rows: Rows) -> Rows:
    return replace(rows, tables=np.roll(rows.tables, 1, axis=1))


def one_position_less(rows: Rows) -> Rows:
    return replace(rows, positions=np.maximum(rows.positions - 1, 0))


FAULTS = {
    "an ancestor is another node": swapped_tail,
    "the block table is shifted": one_block_late,
    "the last position is not seen": one_position_less,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_comparison_notices_a_path_that_is_wrong(fault: Callable[[Rows], Rows]) -> None:
    """Negative control."""
    heads, scene = SHAPES[2], SCENES["one tree"]
    cache, rows = place(scene, heads.cache)
    actual = run(native(heads.program(), KERNELS[-1], shape=heads.cache), fault(rows), cache)
    with pytest.raises(AssertionError):
        assert_close(actual, expected(heads, scene)[0])


def test_the_comparison_notices_a_scale_that_is_wrong() -> None:
    """Negative control."""
    heads, scene = SHAPES[2], SCENES["chains"]
    cache, rows = place(scene, heads.cache)
    actual = run(native(heads.program(scale_queries=1.001), KERNELS[-1], shape=heads.cache), rows, cache)
    with pytest.raises(AssertionError):
        assert_close(actual, expected(heads, scene)[0])
