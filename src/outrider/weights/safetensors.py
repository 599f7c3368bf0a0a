"""Safetensors files: `SafeTensors.open(path)` checks the header and gives each tensor as an array; `write` makes one.

A file is untrusted: reading it gives sound values or a `ModelFileError` that names file and tensor, never a crash.
Format: huggingface.co/docs/safetensors: 8 bytes of header length, the header in JSON, then the tensors' bytes.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from outrider.errors import ModelFileError, UnsupportedModelError

MAX_HEADER = 100_000_000
MAX_DIMENSIONS = 8

_DTYPES: Mapping[str, str] = MappingProxyType(
    {"BOOL": "?", "U8": "u1", "I32": "<i4", "I64": "<i8", "F16": "<f2", "BF16": "<u2", "F32": "<f4"}
)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file: `dtype` as the format calls it; `start` and `end` are bytes of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class SafeTensors:
    """An open file: its metadata and the places of its tensors, all checked against the file's size."""

    path: Path
    metadata: Mapping[str, str]
    tensors: Mapping[str, StoredTensor]
    _bytes: mmap.mmap = field(repr=False)

    @classmethod
    def open(cls, path: str | Path) -> SafeTensors:
        """Map a file and check its header. Raises ModelFileError, or UnsupportedModelError for an unknown dtype."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: the file is empty
            reason = getattr(error, "strerror", None) or error
            raise ModelFileError(f"{path}: cannot be read as a safetensors file: {reason}") from error
        size = struct.unpack_from("<Q", content)[0] if len(content) >= 8 else MAX_HEADER + 1
        if size > min(MAX_HEADER, len(content) - 8):
            raise ModelFileError(f"{path}: its header is said to have {size} bytes; it is no safetensors file, or cut")
        try:
            header = json.loads(content[8 : 8 + size])
        except (ValueError, RecursionError) as error:
            raise ModelFileError(f"{path}: its header is not JSON: {error}") from error
        if not isinstance(header, dict):
            raise ModelFileError(f"{path}: its header is a {type(header).__name__}, expected an object")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise ModelFileError(f"{path}: '__metadata__' is no object of strings")
        tensors = {name: _tensor(path, name, entry, 8 + size, len(content)) for name, entry in header.items()}
        return cls(path, MappingProxyType(metadata), MappingProxyType(tensors), content)

    def array(self, name: str) -> npt.NDArray[Any]:
        """A tensor, read-only and not copied; BF16 as its 16 bits in uint16."""
        tensor = self.tensors[name]
        dtype = np.dtype(_DTYPES[tensor.dtype])
        return np.frombuffer(self._bytes, dtype, prod(tensor.shape), tensor.start).reshape(tensor.shape)


def write(path: str | Path, tensors: Mapping[str, tuple[str, npt.NDArray[Any]]], metadata: Mapping[str, str]) -> None:
    """Write tensors, each given as dtype (as the format calls it) and array; BF16 as its bits in uint16."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    arrays = []
    at = 0
    for name, (dtype, values) in tensors.items():
        array = np.ascontiguousarray(values, _DTYPES[dtype])
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
        arrays.append(array)
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % 8)
    with Path(path).open("wb") as file:
        file.write(struct.pack("<Q", len(content)) + content)
        for array in arrays:
            file.write(array.data)


def _tensor(path: Path, name: str, entry: object, origin: int, size: int) -> StoredTensor:
    def wrong(field: str, value: object, expected: str) -> ModelFileError:
        return ModelFileError(f"{path}: {field} of tensor {name[:100]!r} is {str(value)[:100]}, expected {expected}")

    if not isinstance(entry, dict):
        raise wrong("the entry", entry, "an object")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        supported = ", ".join(_DTYPES)
        raise UnsupportedModelError(
            f"{path}: tensor {name[:100]!r} has dtype {str(dtype)[:20]!r}; this version supports {supported}"
        )
    if not _naturals(shape) or len(shape) > MAX_DIMENSIONS:
        raise wrong("shape", shape, f"at most {MAX_DIMENSIONS} numbers, 0 or more")
    if not _naturals(offsets) or len(offsets) != 2:
        raise wrong("data_offsets", offsets, "two numbers, 0 or more")
    start, end = offsets
    nbytes = prod(shape) * np.dtype(_DTYPES[dtype]).itemsize
    if end - start != nbytes or origin + end > size:
        raise wrong("data_offsets", offsets, f"{nbytes} bytes within the file's {size - origin} bytes of data")
    return StoredTensor(dtype, tuple(shape), origin + start, origin + end)


def _naturals(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
