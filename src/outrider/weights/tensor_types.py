"""The tensor types of ggml, by number, and the block layout of those that this version can use."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple


class TensorType(IntEnum):
    """The number that ggml gives to each tensor type; `BLOCKS` says which of them this version can use."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41


class Block(NamedTuple):
    """The smallest unit of a tensor type: so many consecutive elements of a row in so many bytes."""

    elements: int
    nbytes: int


BLOCKS: Mapping[TensorType, Block] = MappingProxyType(
    {
        TensorType.F32: Block(1, 4),
        TensorType.F16: Block(1, 2),
        TensorType.BF16: Block(1, 2),
        TensorType.Q4_0: Block(32, 2 + 16),
        TensorType.Q4_1: Block(32, 2 + 2 + 16),
        TensorType.Q8_0: Block(32, 2 + 32),
    }
)
"""The tensor types that this version can use."""
