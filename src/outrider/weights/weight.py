"""One weight matrix as its file stores it: a `Program` refers to it, and each runtime turns it into its own form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.types import FloatArray
from outrider.weights.dequantise import dequantise
from outrider.weights.gguf import BLOCKS, GGUF, TensorType


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

    def columns(self, begin: int, end: int) -> Weight:
        """The same outputs of the inputs begin .. end - 1, which must be whole blocks."""
        elements, nbytes = BLOCKS[self.type]
        if begin % elements or end % elements:
            raise ValueError(f"{self.type.name} has blocks of {elements} inputs; {begin} to {end} are not whole ones")
        blocks = self.raw.reshape(self.outputs, self.inputs // elements, nbytes)[:, begin // elements : end // elements]
        return Weight(f"{self.name}[{begin}:{end}]", self.type, self.outputs, end - begin, blocks.reshape(-1))

    def rows(self, count: int) -> Weight:
        """The first `count` outputs, of all inputs."""
        nbytes = len(self.raw) // self.outputs
        return Weight(f"{self.name}[:{count}]", self.type, count, self.inputs, self.raw[: count * nbytes])

    def floats(self) -> FloatArray:
        """The matrix in float32, [outputs, inputs]."""
        return dequantise(self.raw, self.type, (self.outputs, self.inputs))
