"""Every operation, on every kernel set that this processor can run, computes what the NumPy reference computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from outrider.cache import KVCache
from outrider.program import Program
from outrider.types import FloatArray
from outrider.weights.gguf import TensorType
from outrider.weights.weight import Weight
from tests.kernels.operations import CASES, ROWS, Case, inputs
from tests.kernels.workbench import (
    KERNELS,
    NO_CACHE,
    QUANTISED,
    assert_same_bits,
    eight_bit_weight,
    four_bit_weight,
    native,
    plain_rows,
    random,
    record,
    reference,
    run,
    weight,
)

TOLERANCE = 1e-5
"""Of the largest value: sums of up to some hundred float32 products, in another order and with fused additions."""

TOKENS = (3, 0, 16, 5, 5, 9, 1, 12, 11, 2, 4)
POSITIONS = (0, 1, 2, 31, 32, 33, 255, 700, 4000, 5, 5)

by_kernels = pytest.mark.parametrize("kernels", KERNELS)
by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def assert_close(actual: FloatArray, expected: FloatArray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE * float(np.abs(expected).max()))


@by_case
@by_kernels
def test_an_operation_agrees_with_the_reference(kernels: str, case: Case) -> None:
    rows = plain_rows(TOKENS, POSITIONS)
    actual = run(native(record(case.build), kernels), rows)
    assert_close(actual, run(reference(record(case.build)), rows))
    with pytest.raises(AssertionError):  # negative control
        assert_close(actual, run(reference(record(case.fault)), rows))


@pytest.mark.parametrize("kind", QUANTISED)
def test_activations_are_rounded_to_eight_bits_for_quantised_weights_only(kind: TensorType) -> None:
    """The difference is far above the tolerance, so the test above sees whether a kernel rounds."""
    rows = plain_rows(TOKENS)
    for stored, rounds in ((kind, True), (TensorType.F16, False)):
        program = record(lambda p, stored=stored: p.linear(inputs(p, 96), weight("w", random(0, 40, 96), stored)))
        actual, exact = (
            run(native(program, KERNELS[-1]), rows),
            run(reference(program, quantise_activations=False), rows),
        )
        error = np.abs(actual - exact).max() / np.abs(exact).max()
        assert (error > 100 * TOLERANCE) == rounds
        assert error < 0.02


@pytest.mark.parametrize("case", [c for c in CASES if c.name.startswith("embed")], ids=lambda case: case.name)
@by_kernels
def test_embeddings_are_exact(kernels: str, case: Case) -> None:
    rows = plain_rows(range(ROWS))
    assert_same_bits(run(native(record(case.build), kernels), rows), run(reference(record(case.build)), rows))


def extreme_weight(kind: TensorType, outputs: int, inputs: int) -> tuple[Weight, FloatArray]:
    """A weight at both ends of its codes, and at random, with scales that are powers of two, and its values."""
    generator = np.random.default_rng(0)
    if kind == TensorType.Q8_0:
        codes = generator.integers(-128, 128, (outputs, inputs))
        codes[0], codes[1], codes[2] = -128, 127, np.where(np.arange(inputs) % 2, -128, 127)
        return eight_bit_weight("w", codes, 0.25), np.float32(0.25) * codes
    codes = generator.integers(0, 16, (outputs, inputs))
    codes[0], codes[1], codes[2] = 0, 15, np.arange(inputs) % 2 * 15
    if kind == TensorType.Q4_0:
        return four_bit_weight("w", kind, codes, [0.5]), np.float32(0.5) * (codes - 8)
    return four_bit_weight("w", kind, codes, [2, -4]), np.float32(2) * codes - 4


@pytest.mark.parametrize("kind", QUANTISED)
@by_kernels
def test_integer_sums_are_exact_at_the_ends_of_their_range(kernels: str, kind: TensorType) -> None:
    """All scales are powers of two and all sums fit a float, so nothing is rounded: a sum that saturated would show."""
    x = np.random.default_rng(1).integers(-127, 128, (ROWS, 96)).astype(np.float32)
    x[0], x[1], x[2] = 127, -127, np.where(np.arange(96) % 2, 127, -127)
    x[:, ::32] = 127  # the largest of each group of 32: its scale is 1
    matrix, values = extreme_weight(kind, 21, 96)
    program = record(lambda p: p.linear(p.embed(weight("x", x)), matrix))
    np.testing.assert_array_equal(run(native(program, kernels), plain_rows(range(ROWS))), x @ values.T)


@pytest.mark.skipif(not {"avx2", "avx512vnni"} <= set(KERNELS), reason="needs a processor with AVX2 and AVX-512 VNNI")
@pytest.mark.parametrize("case", [c for c in CASES if "Q" in c.name], ids=lambda case: case.name)
def test_both_fast_kernel_sets_give_quantised_layers_the_same_bits(case: Case) -> None:
    rows = plain_rows(range(ROWS))
    assert_same_bits(*(run(native(record(case.build), kernels), rows) for kernels in ("avx2", "avx512vnni")))


@by_kernels
def test_only_the_wanted_rows_are_selected(kernels: str) -> None:
    program = record(lambda p: p.linear(p.select(inputs(p, 64)), weight("w", random(1, 20, 64), TensorType.Q8_0)))
    everything = run(native(program, kernels), plain_rows(range(ROWS)))
    for wanted in ([0], [16], [2, 3, 11], []):
        rows = replace(plain_rows(range(ROWS)), wanted=np.array(wanted, np.int32))
        assert_same_bits(run(native(program, kernels), rows), everything[wanted])


@by_kernels
def test_a_buffer_that_is_an_output_is_not_used_again(kernels: str) -> None:
    """Between the output and its reading come operations whose results would fit into its memory."""

    def build(*, tap: bool) -> Program:
        program = Program()
        x = inputs(program, 64)
        for step in range(4):
            if tap and step == 1:
                program.output("tap.1", x)
            x = program.linear(program.rms_norm(x, random(step, 64), 1e-5), weight(f"w{step}", random(step, 64, 64)))
        program.output("logits", x)
        return program

    rows, cache = plain_rows(TOKENS), KVCache(NO_CACHE, 8)
    output, expected = (
        native(build(tap=True), kernels).forward(rows, cache),
        reference(build(tap=True)).forward(rows, cache),
    )
    assert_close(output.taps[1], expected.taps[1])
    assert_close(output.logits, expected.logits)
    assert_same_bits(output.logits, run(native(build(tap=False), kernels), rows))
