"""A file's tensors by name and expected shape: each is asked for once, and none may be left over."""

from __future__ import annotations

import numpy as np

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.types import FloatArray
from outrider.weights.dequantise import dequantise
from outrider.weights.gguf import GGUF, TensorInfo
from outrider.weights.weight import Weight


class Tensors:
    """Reads tensors for a model definition; ModelFileError names file, tensor and shape where one does not fit."""

    def __init__(self, gguf: GGUF) -> None:
        self._gguf = gguf
        self._read: set[str] = set()

    def outputs(self, name: str, *, inputs: int) -> int:
        """The number of outputs of a matrix of `inputs` inputs."""
        shape = self._gguf.tensor(name).shape
        if len(shape) != 2 or shape[1] != inputs:
            raise self._wrong(name, shape, f"[any number, {inputs}]")
        return shape[0]

    def matrix(self, name: str, outputs: int, inputs: int) -> Weight:
        """A matrix [outputs, inputs], left in the blocks of the file."""
        self._expect(name, (outputs, inputs))
        return Weight.read(self._gguf, name)

    def vector(self, name: str, length: int) -> FloatArray:
        """A vector [length] in float32."""
        info = self._expect(name, (length,))
        return np.ascontiguousarray(dequantise(self._gguf.data(name), info.type, info.shape))

    def optional_vector(self, name: str, length: int) -> FloatArray | None:
        """A vector [length] in float32, or None where the file has none."""
        return self.vector(name, length) if name in self._gguf.tensors else None

    def refuse_unread(self) -> None:
        """UnsupportedModelError if the file holds tensors that the model definition did not ask for."""
        left = sorted(set(self._gguf.tensors) - self._read)
        if left:
            raise UnsupportedModelError(
                f"{self._gguf.path}: tensor {left[0]!r} has no place in this architecture"
                + (f", nor have {len(left) - 1} others" if len(left) > 1 else "")
            )

    def _expect(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        info = self._gguf.tensor(name)
        if info.shape != shape:
            raise self._wrong(name, info.shape, str(list(shape)))
        self._read.add(name)
        return info

    def _wrong(self, name: str, shape: tuple[int, ...], expected: str) -> ModelFileError:
        return ModelFileError(f"{self._gguf.path}: tensor {name!r} has shape {list(shape)}, expected {expected}")
