"""Whatever a pass or a program says, the native core answers with a result or with an exception, never with a crash."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.cache import BLOCK, KVCache
from outrider.kernels import _native
from outrider.models.base import KVShape
from outrider.program import Buffer, Program
from outrider.types import Rows
from outrider.weights.gguf import TensorType
from tests.kernels.scenes import TREE, VOCABULARY, Heads, Text, place
from tests.kernels.workbench import KERNELS, TYPES, native, random, record, run, weight

HEADS = Heads(2, 1, 16)
SCENE = (Text(0, 40, (1, 2, 3)), Text(1, 35, tuple(range(10, 19)), TREE))
CHAIN, BRANCH = 0, 11
"""Two rows: one whose path is stored in order, one (the last) whose path ends in a tail."""

LARGEST, SMALLEST = 2**31 - 1, -(2**31)


def with_item(rows: Rows, field: str, index: int | tuple[int, int], value: int) -> Rows:
    values = getattr(rows, field).copy()
    values[index] = value
    return replace(rows, **{field: values})


SLOTS = BLOCK * (1 + 3 + 3)
ITEMS = [
    *(("tokens", CHAIN, value) for value in (-1, VOCABULARY, LARGEST, SMALLEST)),
    *(("positions", CHAIN, value) for value in (-1, 64, LARGEST, SMALLEST)),
    *(("positions", BRANCH, value) for value in (-1, 64, LARGEST, SMALLEST)),
    *(("slots", CHAIN, value) for value in (-1, SLOTS, LARGEST, SMALLEST)),
    *(("requests", CHAIN, value) for value in (-1, 2, LARGEST, SMALLEST)),
    *(("tables", (1, 0), value) for value in (-1, 7, LARGEST, SMALLEST)),
    *(("tail_starts", BRANCH, value) for value in (0, -1, SMALLEST)),
    *(("tail_offsets", BRANCH, value) for value in (-1, 1000, LARGEST, SMALLEST)),
    *(("tail_offsets", 0, value) for value in (-1, 1)),
    *(("tail_offsets", -1, value) for value in (0, 1000, LARGEST, SMALLEST)),
    *(("tail_slots", 0, value) for value in (-1, SLOTS, LARGEST, SMALLEST)),
    *(("wanted", 0, value) for value in (-1, 12, LARGEST, SMALLEST)),
]


@pytest.mark.parametrize(("field", "index", "value"), ITEMS)
def test_a_pass_with_a_number_out_of_range_is_refused(field: str, index: int, value: int) -> None:
    cache, rows = place(SCENE, HEADS.cache)
    assert (cache.positions, len(rows.tokens)) == (SLOTS, BRANCH + 1)
    model = native(HEADS.program(), KERNELS[-1], shape=HEADS.cache)
    before = cache.keys.copy()
    with pytest.raises(ValueError, match=r"token id|slot|request|position|tail|block table|wanted"):
        model.forward(with_item(rows, field, index, value), cache)
    np.testing.assert_array_equal(cache.keys, before)
    assert np.isfinite(run(model, rows, cache)).all()


def test_a_token_that_is_not_in_the_vocabulary_is_named() -> None:
    cache, rows = place(SCENE, HEADS.cache)
    model = native(HEADS.program(), KERNELS[-1], shape=HEADS.cache)
    with pytest.raises(ValueError, match="token id 64 is outside the vocabulary of 64"):
        model.forward(with_item(rows, "tokens", 3, 64), cache)


def test_tokens_must_be_in_every_vocabulary_that_is_looked_up() -> None:
    small, large = weight("small", random(0, 5, 32)), weight("large", random(0, 9, 32))
    for order in ((small, large), (large, small)):
        program = Program()
        x, y = map(program.embed, order)
        program.output("logits", program.linear(x, weight("w", random(0, 32, 32)), residual=y))
        _, rows = place([Text(0, 0, (4, 7))], HEADS.cache)
        with pytest.raises(ValueError, match="token id 7 is outside the vocabulary of 5"):
            run(native(program, KERNELS[-1]), rows)


@pytest.mark.parametrize("field", [field.name for field in fields(Rows) if field.name not in ("tables", "wanted")])
def test_arrays_of_different_lengths_are_refused(field: str) -> None:
    cache, rows = place(SCENE, HEADS.cache)
    model = native(HEADS.program(), KERNELS[-1], shape=HEADS.cache)
    for values in (getattr(rows, field)[:-1], np.append(getattr(rows, field), np.int32(0))):
        with pytest.raises(ValueError, match=r"differ in length|do not span"):
            model.forward(replace(rows, **{field: values}), cache)


def test_a_pass_without_rows_is_refused() -> None:
    cache, rows = place(SCENE, HEADS.cache)
    none = np.zeros(0, np.int32)
    empty = replace(
        rows, tokens=none, positions=none, slots=none, requests=none, tail_starts=none, tail_slots=none, wanted=none
    )
    with pytest.raises(ValueError, match="at least one row"):
        native(HEADS.program(), KERNELS[-1]).forward(replace(empty, tail_offsets=np.zeros(1, np.int32)), cache)


@pytest.mark.parametrize("shape", [KVShape(1, 1, 16), KVShape(3, 1, 16), KVShape(2, 2, 16), KVShape(2, 1, 32)])
def test_a_cache_of_another_shape_is_refused(shape: KVShape) -> None:
    _, rows = place(SCENE, HEADS.cache)
    with pytest.raises(ValueError, match="shape"):
        native(HEADS.program(), KERNELS[-1]).forward(rows, KVCache(shape, 7))


CACHES: dict[str, Callable[[KVCache], None]] = {
    "float numbers": lambda cache: setattr(cache, "memory", cache.memory.view(np.float32)),
    "wider numbers": lambda cache: setattr(cache, "memory", cache.memory.astype(np.int64)),
    "not contiguous": lambda cache: setattr(cache, "memory", np.asfortranarray(cache.memory)),
    "read-only": lambda cache: cache.memory.setflags(write=False),
    "other runs": lambda cache: setattr(cache, "memory", cache.memory.reshape(-1, 2, 1, 4, 2 * cache.memory.shape[-1])),
    "more blocks than there are": lambda cache: setattr(cache.pool, "size", 9),
}


@pytest.mark.parametrize("change", CACHES.values(), ids=CACHES)
def test_a_cache_that_is_none_or_could_only_be_written_as_a_copy_is_refused(change: Callable[[KVCache], None]) -> None:
    cache, rows = place(SCENE, HEADS.cache)
    change(cache)
    with pytest.raises((ValueError, TypeError)):
        native(HEADS.program(), KERNELS[-1]).forward(rows, cache)


numbers = st.one_of(st.integers(-2, 80), st.integers(SLOTS - 2, SLOTS + 2), st.sampled_from([LARGEST, SMALLEST]))
edits = st.tuples(st.sampled_from([field.name for field in fields(Rows)]), st.integers(0, 1000), numbers)


@settings(max_examples=300, deadline=None)
@given(st.lists(edits, min_size=1, max_size=4), st.sampled_from(KERNELS), st.sampled_from([1, 2]))
def test_any_pass_is_computed_or_refused(changes: list[tuple[str, int, int]], kernels: str, threads: int) -> None:
    cache, rows = place(SCENE, HEADS.cache)
    for field, index, value in changes:
        values = getattr(rows, field).copy()
        values.flat[index % values.size] = value
        rows = replace(rows, **{field: values})
    try:
        logits = run(native(HEADS.program(), kernels, threads, HEADS.cache), rows, cache)
    except ValueError:
        return
    assert logits.shape == (len(rows.wanted), 32)


@pytest.mark.parametrize(
    ("kind", "size", "outputs", "inputs"),
    [
        *((kind.name, 10**4, 4, 64) for kind in TYPES),
        *((kind.name, 0, 4, 64) for kind in TYPES),
        *((kind.name, 0, 0, 64) for kind in TYPES),
        *((kind.name, 0, 4, 0) for kind in TYPES),
        *((kind.name, 64, -4, -64) for kind in TYPES),
        *((kind.name, 33, 1, 33) for kind in TYPES),
        ("F32", 4, 2**31 - 1, 2**31 - 1),
        ("Q4_K", 144, 1, 256),
        ("", 4, 1, 1),
    ],
)
def test_weights_that_do_not_fit_their_bytes_are_refused(kind: str, size: int, outputs: int, inputs: int) -> None:
    with pytest.raises(ValueError, match=r"bytes do not match|multiples of|no kernel"):
        _native.PackedWeight(_native.Arena(), kind, np.zeros(size, np.uint8), outputs, inputs)


def wanted_rope(program: Program, x: Buffer) -> Buffer:
    return program.rope(program.select(x), program.angles([1.0]), heads=1, head_dim=16, interleaved=True)


def attention(
    program: Program, x: Buffer, *, column: int = 0, layer: int = 0, kv_heads: int = 1, head_dim: int = 16
) -> Buffer:
    heads = 64 // head_dim - kv_heads
    return program.attention(x, x, value_column=column, layer=layer, heads=heads, kv_heads=kv_heads, head_dim=head_dim)


def two_attentions(program: Program, x: Buffer) -> Buffer:
    attention(program, x, kv_heads=2)
    return attention(program, x)


PROGRAMS: dict[str, Callable[[Program, Buffer], Buffer]] = {
    "a weight with other inputs": lambda p, x: p.linear(x, weight("w", random(0, 8, 32))),
    "a bias that is too short": lambda p, x: p.linear(x, weight("w", random(0, 8, 64)), bias=random(0, 7)),
    "a residual of another width": lambda p, x: p.linear(x, weight("w", random(0, 8, 64)), residual=x),
    "a residual with other rows": lambda p, x: p.linear(p.select(x), weight("w", random(0, 64, 64)), residual=x),
    "a norm of another width": lambda p, x: p.rms_norm(x, random(0, 63), 1e-5),
    "an odd number of gates": lambda p, x: p.swiglu(p.linear(x, weight("w", random(0, 9, 64)))),
    "more heads than there are": lambda p, x: p.rope(x, p.angles([1.0]), heads=5, head_dim=16, interleaved=True),
    "more angles than pairs": lambda p, x: p.rope(x, p.angles([1.0] * 9), heads=1, head_dim=16, interleaved=True),
    "no angles": lambda p, x: p.rope(x, p.angles([]), heads=1, head_dim=16, interleaved=True),
    "rotating selected rows": wanted_rope,
    "selecting twice": lambda p, x: p.select(p.select(x)),
    "attention of selected rows": lambda p, x: attention(p, p.select(x)),
    "a head that is no multiple of 16": lambda p, x: attention(p, x, head_dim=8),
    "queries that are no multiple of the keys": lambda p, x: attention(p, x, kv_heads=3),
    "no key heads": lambda p, x: attention(p, x, kv_heads=0),
    "values past the end": lambda p, x: attention(p, x, column=49),
    "values before the start": lambda p, x: attention(p, x, column=-1),
    "a layer before the first": lambda p, x: attention(p, x, layer=-1),
    "layers of different shapes": two_attentions,
}


@pytest.mark.parametrize("build", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_that_does_not_fit_together_is_refused(build: Callable[[Program, Buffer], Buffer]) -> None:
    program = record(lambda p: build(p, p.embed(weight("inputs", random(0, 8, 64)))))
    with pytest.raises(ValueError, match=r"linear|rms_norm|swiglu|rope|attention|select|buffer"):
        native(program, KERNELS[-1])


def test_quantised_weights_need_inputs_in_whole_groups() -> None:
    """Such a weight cannot be packed, so no program reaches the kernels with one."""
    with pytest.raises(ValueError, match="multiples of 32"):
        _native.PackedWeight(_native.Arena(), TensorType.Q8_0.name, np.zeros(34, np.uint8), 1, 16)


@pytest.mark.parametrize("threads", [0, -1])
def test_a_team_needs_a_thread(threads: int) -> None:
    with pytest.raises(ValueError, match="thread"):
        _native.Team(threads)


SCRIPT = """
import resource
from outrider.kernels import _native
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
try:
    _native.Team(1024)
except RuntimeError as error:
    print("refused:", error)
"""


def test_a_system_without_enough_threads_gives_an_error() -> None:
    """1,024 stacks of 8 MiB do not fit into 2 GiB of address space."""
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert result.stdout.startswith("refused:"), result
