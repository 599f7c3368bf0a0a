"""Tensor bytes as float32, in plain NumPy: the meaning of each tensor type, and the reference for the kernels.

The block layouts are those of the ggml project's ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from outrider.types import FloatArray
from outrider.weights.tensor_types import BLOCKS, TensorType


def dequantise(data: npt.NDArray[np.uint8], kind: TensorType, shape: tuple[int, ...]) -> FloatArray:
    """The values of a tensor, or of some of its rows, as a new float32 array of that shape.

    data  [nbytes] the bytes of whole rows, in order.
    kind  one of `gguf.BLOCKS`.
    shape rows first, as in `TensorInfo.shape`; it must match the bytes.
    """
    blocks = data.reshape(-1, BLOCKS[kind].nbytes)
    with np.errstate(invalid="ignore", over="ignore"):  # a damaged scale gives inf or NaN, not a warning
        return _values(blocks, kind).reshape(shape)


def _values(blocks: npt.NDArray[np.uint8], kind: TensorType) -> FloatArray:
    """[blocks, bytes of a block] -> float32 [blocks, elements of a block]."""
    match kind:
        case TensorType.F32:
            return blocks.view("<f4").astype(np.float32)
        case TensorType.F16:
            return blocks.view("<f2").astype(np.float32)
        case TensorType.BF16:
            return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)
        case TensorType.Q4_0:
            return _half(blocks, 0) * (_nibbles(blocks[:, 2:]) - 8)
        case TensorType.Q4_1:
            return _half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)
        case TensorType.Q8_0:
            return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)
    raise ValueError(f"no dequantisation for {kind.name}")


def _half(blocks: npt.NDArray[np.uint8], at: int) -> FloatArray:
    """The float16 at byte `at` of each block, [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(codes: npt.NDArray[np.uint8]) -> FloatArray:
    """[blocks, 16] -> [blocks, 32]: first all low halves of the bytes, then all high halves."""
    return np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.float32)
