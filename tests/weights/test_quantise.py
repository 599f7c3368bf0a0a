"""Blocks that we make are read alike by the `gguf` package, and are no worse than its own."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from outrider.types import FloatArray
from outrider.weights.dequantise import dequantise
from outrider.weights.quantise import quantise
from outrider.weights.tensor_types import BLOCKS, TensorType

SHAPE = (40, 96)
VALUES = {
    "normal": np.random.default_rng(0).standard_normal(SHAPE, np.float32),
    "one sign": np.abs(np.random.default_rng(1).standard_normal(SHAPE, np.float32)) + 1,
    "an outlier": np.where(np.arange(96) % 32 == 5, np.float32(9), np.float32(0.1)) * np.ones(SHAPE, np.float32),
    "zeros": np.zeros(SHAPE, np.float32),
    "constant": np.full(SHAPE, np.float32(0.7)),
    "tiny": np.random.default_rng(2).standard_normal(SHAPE, np.float32) * np.float32(1e-4),
}


def error(actual: FloatArray, wanted: FloatArray) -> float:
    return float(np.sqrt(np.mean((actual.astype(np.float64) - wanted) ** 2)))


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("kind", list(BLOCKS))
def test_numbers_come_back_as_well_as_from_gguf(kind: TensorType, name: str) -> None:
    values = VALUES[name]
    number = gguf.GGMLQuantizationType(kind)
    raw = quantise(values, kind)
    assert raw.dtype == np.uint8
    ours = dequantise(raw, kind, SHAPE)
    theirs = gguf.quants.dequantize(np.asarray(gguf.quants.quantize(values, number)), number)
    as_gguf_reads = gguf.quants.dequantize(raw.reshape(SHAPE[0], -1).view(_dtype(kind)), number)
    np.testing.assert_array_equal(as_gguf_reads, ours)
    assert error(ours, values) <= 1.001 * error(theirs, values) + 1e-7
    shifted = np.roll(values, 1, axis=1)  # negative control
    assert name in ("zeros", "constant") or error(ours, shifted) > 3 * error(ours, values)


def _dtype(kind: TensorType) -> np.dtype:
    return np.dtype({TensorType.F32: "<f4", TensorType.F16: "<f2"}.get(kind, "u1"))


@pytest.mark.parametrize("kind", [TensorType.Q4_0, TensorType.Q4_1])
def test_the_fit_beats_rounding_between_the_ends(kind: TensorType) -> None:
    number = gguf.GGMLQuantizationType(kind)
    theirs = gguf.quants.dequantize(gguf.quants.quantize(VALUES["normal"], number), number)
    ours = dequantise(quantise(VALUES["normal"], kind), kind, SHAPE)
    assert error(ours, VALUES["normal"]) < 0.98 * error(theirs, VALUES["normal"])


def test_rows_must_be_whole_blocks() -> None:
    with pytest.raises(ValueError, match="Q4_0 needs inputs in multiples of 32, not 40"):
        quantise(np.zeros((2, 40), np.float32), TensorType.Q4_0)
