"""NaN and infinity reach what depends on them and nothing else: never shown as a finite number, nor in another row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from outrider.program import Buffer, Program
from outrider.types import FloatArray
from outrider.weights.gguf import TensorType
from outrider.weights.weight import Weight
from tests.kernels.operations import ROWS
from tests.kernels.scenes import Heads, Text, attend, place
from tests.kernels.workbench import (
    KERNELS,
    QUANTISED,
    TYPES,
    assert_same_bits,
    native,
    plain_rows,
    random,
    record,
    reference,
    run,
    weight,
)

BAD = (float("nan"), float("inf"), -float("inf"))
WIDTH = 64
ROW, COLUMN = 5, 37

by_kernels = pytest.mark.parametrize("kernels", KERNELS)
by_bad = pytest.mark.parametrize("bad", BAD)


def check(
    kernels: str,
    clean: FloatArray,
    bad: float,
    build: Callable[[Program, Buffer], Buffer],
    columns: slice | list[int],
    spoilt_column: int = COLUMN,
) -> None:
    """With one bad number in one row, exactly these columns of exactly that row of the result are not finite."""
    spoilt = clean.copy()
    spoilt[ROW, spoilt_column] = bad
    for threads in (1, 2):
        expected, actual = (
            run(
                native(record(lambda p, x=x: build(p, p.embed(weight("x", x)))), kernels, threads),
                plain_rows(range(ROWS)),
            )
            for x in (clean, spoilt)
        )
        touched = np.zeros(expected.shape, bool)
        touched[ROW, columns] = True
        np.testing.assert_array_equal(~np.isfinite(actual), touched)
        assert_same_bits(actual[np.arange(ROWS) != ROW], expected[np.arange(ROWS) != ROW])
        alone = native(record(lambda p: build(p, p.embed(weight("x", spoilt)))), kernels, threads)
        np.testing.assert_array_equal(run(alone, plain_rows([ROW])), actual[[ROW]])  # of a NaN, the sign is chance


@pytest.mark.parametrize("kind", TYPES)
@by_bad
@by_kernels
def test_a_bad_activation_spoils_all_outputs_of_its_row(kernels: str, bad: float, kind: TensorType) -> None:
    matrix = weight("w", random(0, 35, WIDTH), kind)
    check(kernels, random(1, ROWS, WIDTH), bad, lambda p, x: p.linear(x, matrix), slice(None))


@by_bad
@by_kernels
def test_a_bad_activation_in_the_residual_spoils_its_column(kernels: str, bad: float) -> None:
    matrix = weight("w", random(0, WIDTH, WIDTH), TensorType.Q4_0)
    other = weight("y", random(2, ROWS, WIDTH))
    check(kernels, random(1, ROWS, WIDTH), bad, lambda p, x: p.linear(p.embed(other), matrix, residual=x), [COLUMN])


@pytest.mark.parametrize("kind", TYPES)
@by_bad
@by_kernels
def test_a_bad_activation_is_still_bad_after_normalisation(kernels: str, bad: float, kind: TensorType) -> None:
    """An infinity makes all other columns 0 and its own NaN; the layer after that makes them all NaN."""
    matrix = weight("w", random(0, 35, WIDTH), kind)
    gains = np.ones(WIDTH, np.float32)
    check(kernels, random(1, ROWS, WIDTH), bad, lambda p, x: p.linear(p.rms_norm(x, gains, 1e-5), matrix), slice(None))


@by_bad
@by_kernels
def test_a_bad_gate_or_up_spoils_its_product(kernels: str, bad: float) -> None:
    clean = random(1, ROWS, WIDTH)
    for column in (5, WIDTH // 2 + 5):
        check(kernels, clean, bad, lambda p, x: p.swiglu(x), [5], column)


def spoilt_scale(matrix: Weight, output: int, bad: float, at: int) -> Weight:
    """The weight with a bad half-precision number in the first block of one output."""
    raw = matrix.raw.copy()
    start = output * (len(raw) // matrix.outputs) + at
    raw[start : start + 2] = np.array([bad], np.float16).view(np.uint8)
    return Weight(matrix.name, matrix.type, matrix.outputs, matrix.inputs, raw)


@pytest.mark.parametrize(
    ("kind", "at"), [*((kind, 0) for kind in QUANTISED), (TensorType.Q4_1, 2), (TensorType.F16, 6)]
)
@by_bad
@by_kernels
def test_a_bad_weight_spoils_its_output_in_every_row(kernels: str, bad: float, kind: TensorType, at: int) -> None:
    """Also where all activations are zero."""
    clean = weight("w", random(0, 35, WIDTH), kind)
    x = random(1, ROWS, WIDTH)
    x[3] = 0
    expected, actual = (
        run(native(record(lambda p, w=w: p.linear(p.embed(weight("x", x)), w)), kernels), plain_rows(range(ROWS)))
        for w in (clean, spoilt_scale(clean, 20, bad, at))
    )
    np.testing.assert_array_equal(~np.isfinite(actual), np.broadcast_to(np.arange(35) == 20, actual.shape))
    others = np.arange(35) != 20
    assert_same_bits(actual[:, others], expected[:, others])


@pytest.mark.parametrize("kind", QUANTISED)
@by_kernels
def test_numbers_too_small_to_divide_by_count_as_zero(kernels: str, kind: TensorType) -> None:
    """Not as infinity, as 127 / 1e-38 is."""
    x = random(1, ROWS, WIDTH)
    x[0] *= np.float32(1e-38)
    x[1, :32] *= np.float32(1e-37)
    x[2] = np.float32(1e-45)
    x[3] *= np.float32(1e-30)
    program = record(lambda p: p.linear(p.embed(weight("x", x)), weight("w", random(0, 35, WIDTH), kind)))
    actual = run(native(program, kernels), plain_rows(range(ROWS)))
    np.testing.assert_allclose(actual, run(reference(program), plain_rows(range(ROWS))), rtol=1e-4, atol=1e-5)
    assert not actual[[0, 2]].any()
    assert actual[3].all()


HEADS = Heads(4, 2, 32)
TEXTS = (Text(0, 40, (1, 2, 3)), Text(1, 300, (4, 5, 6, 7)), Text(2, 0, (8,)))


def tables(token: int, column: int, bad: float, part: str) -> Program:
    """The program of HEADS with one bad number in a token's query, key or value."""
    program = HEADS.program()
    qk, v = (operation.weight for operation in program.operations[:2])
    matrix = v if part == "value" else qk
    values = matrix.floats().copy()
    values[token, column + (HEADS.heads * HEADS.head_dim if part == "key" else 3 if part == "value" else 0)] = bad
    matrix.raw.view(np.float32)[:] = values.reshape(-1)
    return program


@pytest.mark.parametrize("part", ["query", "key", "value"])
@by_bad
@by_kernels
def test_attention_to_a_bad_number_shows_in_the_rows_that_see_it(kernels: str, bad: float, part: str) -> None:
    """Exactly where the reference has no number is none."""
    program = tables(5, 3, bad, part)
    clean = np.concatenate(attend(native(HEADS.program(), kernels, shape=HEADS.cache), TEXTS))
    for threads in (1, 3):
        actual = np.concatenate(attend(native(program, kernels, threads, HEADS.cache), TEXTS))
        with np.errstate(invalid="ignore", over="ignore"):
            expected = np.concatenate(attend(reference(program, HEADS.cache), TEXTS))
        np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(expected))
        unseen = [row for row in range(8) if row not in ((4,) if part == "query" else (4, 5, 6))]
        assert_same_bits(actual[unseen], clean[unseen])
        assert np.isfinite(actual[unseen]).all()
        assert not np.isfinite(actual[4]).all()


@by_kernels
def test_what_other_requests_left_in_the_cache_is_not_seen(kernels: str) -> None:
    """All places that a text does not use hold NaN, in its own blocks too."""
    cache, _ = place(TEXTS, HEADS.cache)
    assert np.isnan(cache.scales).any()
    for attended in attend(native(HEADS.program(), kernels, shape=HEADS.cache), TEXTS):
        assert np.isfinite(attended).all()
