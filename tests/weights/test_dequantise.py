"""Tensor bytes mean the numbers that ggml says they mean."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from outrider.weights.dequantise import dequantise
from outrider.weights.gguf import BLOCKS, GGUF, TensorType
from tests.tiny import float_weights, tiny_llama

Bytes = np.typing.NDArray[np.uint8]
kinds = pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.name)


def random_rows(kind: TensorType, rows: int, columns: int) -> Bytes:
    """Random bytes: every code, and scales of every kind, infinities and NaN too."""
    nbytes = rows * columns // BLOCKS[kind].elements * BLOCKS[kind].nbytes
    return np.random.default_rng(kind).integers(0, 256, nbytes, dtype=np.uint8)


def agrees_with_ggml(data: Bytes, kind: TensorType, shape: tuple[int, int], ours: np.ndarray) -> bool:
    with np.errstate(all="ignore"):
        theirs = gguf.quants.dequantize(data.reshape(shape[0], -1), gguf.GGMLQuantizationType(kind))
    return np.array_equal(ours, theirs, equal_nan=True)


@kinds
@pytest.mark.parametrize("shape", [(1, 32), (33, 96)])
def test_every_bit_is_as_in_the_gguf_package(kind: TensorType, shape: tuple[int, int]) -> None:
    data = random_rows(kind, *shape)
    ours = dequantise(data, kind, shape)
    assert ours.dtype == np.float32
    assert ours.shape == shape
    assert agrees_with_ggml(data, kind, shape, ours)


@pytest.mark.parametrize("kind", [TensorType.Q4_0, TensorType.Q4_1])
def test_swapped_halves_of_the_code_bytes_would_be_noticed(kind: TensorType) -> None:
    data = random_rows(kind, 4, 64)
    blocks = data.reshape(-1, BLOCKS[kind].nbytes).copy()
    blocks[:, -16:] = blocks[:, -16:] << 4 | blocks[:, -16:] >> 4
    assert not agrees_with_ggml(data, kind, (4, 64), dequantise(blocks.ravel(), kind, (4, 64)))


@pytest.mark.parametrize(
    ("kind", "block", "values"),
    [
        (TensorType.F32, b"\x00\x00\x80\x3f", [1.0]),
        (TensorType.F16, b"\x00\xc0", [-2.0]),
        (TensorType.BF16, b"\x40\x3f", [0.75]),
        (TensorType.Q4_0, b"\x00\x38" + b"\x0f" * 16, [3.5] * 16 + [-4.0] * 16),  # scale 0.5, codes 15 and 0
        (TensorType.Q4_1, b"\x00\x38\x00\x3c" + b"\x0f" * 16, [8.5] * 16 + [1.0] * 16),  # and a minimum of 1
        (TensorType.Q8_0, b"\x00\x38" + b"\x80\x7f" * 16, [-64.0, 63.5] * 16),
    ],
    ids=lambda value: value.name if isinstance(value, TensorType) else "",
)
def test_a_block_worked_out_by_hand(kind: TensorType, block: bytes, values: list[float]) -> None:
    ours = dequantise(np.frombuffer(block, np.uint8), kind, (1, len(values)))
    assert ours.tolist() == [values]


@kinds
def test_a_models_tensors_and_single_rows_of_them(tmp_path: Path, kind: TensorType) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf", weight_type=kind, layers=1)
    file = GGUF.open(path)
    for name, theirs in float_weights(path).items():
        tensor = file.tensors[name]
        assert np.array_equal(dequantise(file.data(name), tensor.type, tensor.shape), theirs)
    info = file.tensors["token_embd.weight"]
    row = file.data("token_embd.weight").reshape(info.shape[0], -1)[65]
    assert np.array_equal(dequantise(row, info.type, (1, 64))[0], float_weights(path)["token_embd.weight"][65])


def test_the_result_is_a_copy_that_may_be_written(tmp_path: Path) -> None:
    file = GGUF.open(tiny_llama(tmp_path / "tiny.gguf"))
    dequantise(file.data("output_norm.weight"), TensorType.F32, (64,))[0] = 1
