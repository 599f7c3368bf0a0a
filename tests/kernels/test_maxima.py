"""The largest of each 32 logits comes with them, whatever makes the last layer's columns, and leads to their argmax."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.cache import KVCache
from outrider.errors import NumericError
from outrider.kernels import _sampling
from outrider.kernels.native import MAXIMUM
from outrider.program import Program
from outrider.sampling import greedy_token
from outrider.types import FloatArray, Output
from outrider.weights.gguf import TensorType
from tests.kernels.workbench import KERNELS, NO_CACHE, assert_same_bits, native, plain_rows, random, record, weight

ROWS = 9


def largest(logits: FloatArray) -> FloatArray:
    """The maxima, in NumPy, where NaN is the largest."""
    padding = -logits.shape[1] % MAXIMUM
    padded = np.pad(logits, [(0, 0), (0, padding)], constant_values=-np.inf)
    return padded.reshape(len(logits), -1, MAXIMUM).max(axis=2)


def after_a_layer(width: int) -> Program:
    """Logits that a linear layer makes, 32 columns at a time."""
    matrix = weight("w", random(0, width, 64), TensorType.Q4_0)
    return record(lambda p: p.linear(p.select(p.embed(weight("x", random(1, ROWS, 64)))), matrix))


def after_two(width: int) -> Program:
    """Two weights side by side, the first of which ends inside 32 columns, and a bias with all that is no number."""
    matrices = [weight(name, random(2, outputs, 64)) for name, outputs in (("v", 7), ("w", width))]
    bias = random(3, 7 + width)
    bias[[0, width - 1, 7 + width - 1]] = -np.inf, np.inf, np.nan
    return record(lambda p: p.linear(p.select(p.embed(weight("x", random(1, ROWS, 64)))), *matrices, bias=bias))


def as_they_are(width: int) -> Program:
    """Logits that no layer makes; below the row's number there is nothing but what is impossible."""
    table = random(4, ROWS, width)
    table[0, : width // 2] = -np.inf
    table[1, width // 2] = np.nan
    table[2, ::3] = -np.nan
    return record(lambda p: p.select(p.embed(weight("x", table))))


def forward(program: Program, kernels: str, threads: int) -> Output:
    return native(program, kernels, threads).forward(plain_rows(range(ROWS)), KVCache(NO_CACHE, 8))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("width", [1, 31, 32, 33, 48, 500])
@pytest.mark.parametrize("build", [after_a_layer, after_two, as_they_are])
def test_they_are_the_largest_of_each_32(build, width: int, kernels: str) -> None:
    program = build(width)
    for threads in (1, 2):
        output = forward(program, kernels, threads)
        assert output.maxima is not None
        assert_same_bits(np.nan_to_num(output.maxima, nan=7), np.nan_to_num(largest(output.logits), nan=7))
        assert [_sampling.argmax(*row) for row in zip(output.logits, output.maxima, strict=True)] == (
            output.logits.argmax(axis=1).tolist()
        )


def test_the_comparison_is_not_blind() -> None:
    output = forward(after_a_layer(500), KERNELS[-1], 1)
    off = np.nextafter(output.logits, np.float32(np.inf))
    assert (largest(off) != output.maxima).all()


@pytest.mark.parametrize(
    "places", [[0], [31, 32], [33, 400, 499], [498, 499], list(range(500))], ids=lambda places: f"{len(places)}"
)
def test_ties_go_to_the_lowest_id(places: list[int]) -> None:
    logits = random(5, 500)
    logits[places] = 9
    assert greedy_token(logits, largest(logits[np.newaxis])[0]) == places[0]


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 40, 499])
def test_what_is_no_number_is_an_error(bad: float, place: int) -> None:
    logits = random(6, 500)
    logits[place] = bad
    for maxima in (None, largest(logits[np.newaxis])[0]):
        with pytest.raises(NumericError, match=rf"\(token {place}\)"):
            greedy_token(logits, maxima)


def test_nothing_possible_is_an_error() -> None:
    with pytest.raises(NumericError, match=r"-inf \(token 0\)"):
        greedy_token(np.full(40, -np.inf, np.float32), np.full(2, -np.inf, np.float32))


@pytest.mark.parametrize("count", [0, 15, 17])
def test_maxima_of_other_logits_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="not one per 32 logits"):
        _sampling.argmax(np.zeros(500, np.float32), np.zeros(count, np.float32))
