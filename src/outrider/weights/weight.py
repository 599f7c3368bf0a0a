"""One weight matrix as its file stores it: a `Program` refers to it, and each runtime turns it into its own form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.types import FloatArray
from outrider.weights.dequantise import dequantise
from outrider.weights.gguf import GGUF, TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A matrix [outputs, inputs] in the blocks of its file; `y = W x` maps inputs to outputs.

    Two are the same only if they are one object.
    """

    name: str
    type: TensorType
    outputs: int
    inputs: int
    raw: npt.NDArray[np.uint8]

    @classmethod
    def read(cls, gguf: GGUF, name: str) -> Weight:
        """The tensor `name` of a file, which must be a matrix."""
        info = gguf.tensors[name]
        outputs, inputs = info.shape
        return cls(name, info.type, outputs, inputs, gguf.data(name))

    def floats(self) -> FloatArray:
        """The matrix in float32, [outputs, inputs]."""
        return dequantise(self.raw, self.type, (self.outputs, self.inputs))
