"""From float32 to the 4- and 8-bit blocks of `tensor_types`: the inverse of `dequantise`, up to rounding. Plain NumPy.

Groups of 32 numbers share a scale, and in Q4_1 a minimum. Both are fitted to the group by least squares after a first
rounding between its ends, and the numbers are rounded anew.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from outrider.types import FloatArray
from outrider.weights.tensor_types import BLOCKS, TensorType

_ROWS = 4096  # groups that are in work together


def quantise(values: FloatArray, kind: TensorType) -> npt.NDArray[np.uint8]:
    """The bytes of a matrix [outputs, inputs] in the blocks of a type, row after row.

    kind  any of `BLOCKS`; inputs must be a multiple of its block's elements.
    """
    values = np.ascontiguousarray(values, np.float32)
    match kind:
        case TensorType.F32:
            return values.view(np.uint8).reshape(-1)
        case TensorType.F16:
            return values.astype("<f2").view(np.uint8).reshape(-1)
        case TensorType.BF16:
            return to_bfloat(values).view(np.uint8).reshape(-1)
    if values.shape[-1] % BLOCKS[kind].elements:
        raise ValueError(f"{kind.name} needs inputs in multiples of {BLOCKS[kind].elements}, not {values.shape[-1]}")
    groups = values.reshape(-1, BLOCKS[kind].elements)
    blocks = np.empty((len(groups), BLOCKS[kind].nbytes), np.uint8)
    for start in range(0, len(groups), _ROWS):
        blocks[start : start + _ROWS] = _BLOCKS[kind](groups[start : start + _ROWS])
    return blocks.reshape(-1)


def to_bfloat(values: FloatArray) -> npt.NDArray[np.uint16]:
    """The upper 16 bits of each float32, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _q4_1(groups: FloatArray) -> npt.NDArray[np.uint8]:
    """code * scale + minimum, codes 0 to 15."""
    low, high = groups.min(1, keepdims=True), groups.max(1, keepdims=True)
    scale, minimum = (high - low) / 15, low
    for _ in range(3):
        codes = _rounded((groups - minimum) * _inverse(scale), 0, 15)
        # Least squares of groups = codes * scale + minimum; a group of equal codes keeps what it has.
        mean, centre = codes.mean(1, keepdims=True), groups.mean(1, keepdims=True)
        spread = ((codes - mean) ** 2).sum(1, keepdims=True)
        slope = ((codes - mean) * (groups - centre)).sum(1, keepdims=True) * _inverse(spread)
        scale = np.where(spread > 0, slope, scale)
        minimum = np.where(spread > 0, centre - slope * mean, minimum)
    scale_bytes, scale = _halves(scale)
    minimum_bytes, minimum = _halves(minimum)
    codes = _rounded((groups - minimum) * _inverse(scale), 0, 15)
    return np.concatenate([scale_bytes, minimum_bytes, _nibbles(codes)], axis=1)


def _q4_0(groups: FloatArray) -> npt.NDArray[np.uint8]:
    """(code - 8) * scale, codes 0 to 15; the number farthest from zero begins as code 0."""
    farthest = np.take_along_axis(groups, np.abs(groups).argmax(1)[:, None], axis=1)
    scale: FloatArray = farthest / np.float32(-8)
    for _ in range(3):
        codes = _rounded(groups * _inverse(scale), -8, 7)
        squares = (codes * codes).sum(1, keepdims=True)
        scale = np.where(squares > 0, (codes * groups).sum(1, keepdims=True) * _inverse(squares), scale)
    scale_bytes, scale = _halves(scale)
    codes = _rounded(groups * _inverse(scale), -8, 7) + 8
    return np.concatenate([scale_bytes, _nibbles(codes)], axis=1)


def _q8_0(groups: FloatArray) -> npt.NDArray[np.uint8]:
    """code * scale, codes -127 to 127."""
    scale_bytes, scale = _halves(np.abs(groups).max(1, keepdims=True) / 127)
    codes = _rounded(groups * _inverse(scale), -127, 127).astype(np.int8)
    return np.concatenate([scale_bytes, codes.view(np.uint8)], axis=1)


_BLOCKS = {TensorType.Q4_0: _q4_0, TensorType.Q4_1: _q4_1, TensorType.Q8_0: _q8_0}


def _halves(values: npt.NDArray[np.floating]) -> tuple[npt.NDArray[np.uint8], FloatArray]:
    """[groups, 1] in half precision: as bytes, and as the numbers they stand for."""
    halves = values.astype("<f2")
    return halves.view(np.uint8), halves.astype(np.float32)


def _rounded(values: FloatArray, low: int, high: int) -> FloatArray:
    return np.clip(np.rint(values), low, high)


def _inverse(values: npt.NDArray[np.floating]) -> FloatArray:
    """1 / values, and 0 where they are 0."""
    inverse: FloatArray = np.divide(1, values, out=np.zeros(values.shape, np.float32), where=values != 0)
    return inverse


def _nibbles(codes: FloatArray) -> npt.NDArray[np.uint8]:
    """[groups, 32] codes -> [groups, 16] bytes: the first half in the low bits, the second in the high ones."""
    whole = codes.astype(np.uint8)
    return (whole[:, :16] | whole[:, 16:] << 4).astype(np.uint8)
