"""GGUF model files, memory-mapped: `GGUF.open(path)` reads and checks the header, `data(name)` gives a tensor's bytes.

A file is untrusted: reading it gives sound values or a `ModelError` that names file, field and value, never a crash.
Format: GGUF versions 2 and 3, little-endian, as specified in the ggml project's docs/gguf.md.
"""

from __future__ import annotations

import mmap
import reprlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, isfinite, prod
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.weights.tensor_types import BLOCKS, TensorType

__all__ = ["BLOCKS", "GGUF", "MetadataValue", "TensorInfo", "TensorType"]

MetadataValue: TypeAlias = "bool | int | float | str | tuple[MetadataValue, ...]"

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
MAX_NESTING = 4
MAX_ITEMS = 2**23  # of a header, all arrays together: bounds the memory that a hostile file can claim
DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file.

    shape   in NumPy's order, rows first: the reverse of the order in the file.
    offset  of its first byte, from the start of the file.
    nbytes  its length in the file.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class GGUF:
    """An open GGUF file: its metadata and the places of its tensors, all checked against the file's size.

    The file stays mapped for as long as this object or an array from `data` is alive; it must not be cut meanwhile.
    """

    path: Path
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, TensorInfo]
    _bytes: mmap.mmap = field(repr=False)

    @classmethod
    def open(cls, path: str | Path) -> GGUF:
        """Map a file and check its header.

        Raises ModelFileError if the file is missing, broken or hostile, UnsupportedModelError if it is sound but
        holds a tensor type that this version lacks.
        """
        path = Path(path)
        header = _Header(path, _map(path))
        tensor_count, field_count = header.start()
        file = cls(path, MappingProxyType(header.fields(field_count)), MappingProxyType({}), header.bytes)
        alignment = file.integer("general.alignment", minimum=8, maximum=2**30, default=DEFAULT_ALIGNMENT)
        if alignment & (alignment - 1):
            raise file._wrong("general.alignment", "a power of two")
        return replace(file, tensors=MappingProxyType(header.tensors(tensor_count, alignment)))

    def tensor(self, name: str) -> TensorInfo:
        """The tensor of that name; ModelFileError if the file has none."""
        try:
            return self.tensors[name]
        except KeyError:
            raise ModelFileError(f"{self.path}: tensor {name!r} is missing") from None

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, [nbytes], read-only and not copied; ModelFileError if the file has no such tensor."""
        tensor = self.tensor(name)
        return np.frombuffer(self._bytes, np.uint8, tensor.nbytes, tensor.offset)

    def release(self) -> None:
        """Give back the memory that reading took: whoever reads again reads from the file again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._bytes.madvise(mmap.MADV_DONTNEED)

    def integer(self, field: str, *, minimum: float = -inf, maximum: float = inf, default: int | None = None) -> int:
        """An integer field within [minimum, maximum], or the default if it is absent; ModelFileError otherwise."""
        value = self._value(field, default)
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
            return value
        raise self._wrong(field, f"an integer in [{minimum}, {maximum}]")

    def number(self, field: str, *, minimum: float = -inf, maximum: float = inf, default: float | None = None) -> float:
        """A finite number within [minimum, maximum], or the default if it is absent; ModelFileError otherwise."""
        value = self._value(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(field, "a number")
        if not (minimum <= value <= maximum and isfinite(value)):
            raise self._wrong(field, f"a finite number in [{minimum}, {maximum}]")
        return float(value)

    def text(self, field: str, *, default: str | None = None) -> str:
        """A string field, or the default if it is absent; ModelFileError otherwise."""
        value = self._value(field, default)
        if isinstance(value, str):
            return value
        raise self._wrong(field, "a string")

    def _value(self, field: str, default: MetadataValue | None) -> MetadataValue:
        value = self.metadata.get(field, default)
        if value is None:
            raise ModelFileError(f"{self.path}: field {field!r} is missing")
        return value

    def _wrong(self, field: str, expected: str) -> ModelFileError:
        value = _show(self.metadata.get(field))
        return ModelFileError(f"{self.path}: field {field!r} is {value}, expected {expected}")


def _map(path: Path) -> mmap.mmap:
    """Map a file that starts as GGUF files do."""
    try:
        if not path.is_file():  # also keeps us from waiting for ever on a named pipe
            kind = "not a regular file" if path.exists() else "no such file"
            raise ModelFileError(f"{path}: {kind}, expected a .gguf file")
        with path.open("rb") as file:
            start = file.read(24)
            if start[:4] != MAGIC:
                raise ModelFileError(f"{path}: {_foreign(start)}, expected a file that starts with {MAGIC!r}")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error


def _foreign(start: bytes) -> str:
    """What a file is that starts with these bytes, which are not GGUF's."""
    if not start:
        return "the file is empty"
    if start.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the model itself (run `git lfs pull`)"
    return f"not a GGUF file: it starts with {start[:4]!r}"


def _show(value: object) -> str:
    """repr, cut to a length that is fit for a message."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 100
    return short.repr(value)


_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_SCALARS = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_SMALLEST_FIELD = 8 + 4 + 1  # key length, value type, value
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8  # name length, number of dimensions, one dimension, type, offset


class _Header:
    """A cursor over a file's header; every read is checked against the end of the file."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path = path
        self.bytes = content
        self.at = len(MAGIC)
        self.items = 0

    def start(self) -> tuple[int, int]:
        """Check the version; return the number of tensors and of metadata fields."""
        version = self.u32("version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            if swapped in VERSIONS:
                raise self.error("version", f"{swapped} in big-endian order", "a little-endian file")
            raise self.error("version", version, "2 or 3")
        return self.u64("tensor count"), self.u64("metadata field count")

    def fields(self, count: int) -> dict[str, MetadataValue]:
        """Read the metadata."""
        self.room_for(count, _SMALLEST_FIELD, "metadata field count")
        fields: dict[str, MetadataValue] = {}
        for index in range(count):
            (key,) = self.strings(1, f"key of metadata field {index}")
            if key in fields:
                raise self.error(f"metadata field {index}", _show(key), "each key once")
            fields[key] = self.value(self.u32(f"value type of field {_show(key)}"), f"field {_show(key)}")
        return fields

    def value(self, kind: int, name: str, depth: int = 0) -> MetadataValue:
        if kind == _STRING:
            return self.strings(1, name)[0]
        if kind != _ARRAY:
            return self.scalars(kind, 1, name)[0]
        if depth == MAX_NESTING:
            raise self.error(name, f"an array nested more than {MAX_NESTING} deep", "a flat array")
        kind, count = self.u32(f"element type of {name}"), self.u64(f"length of {name}")
        if kind == _STRING:
            return self.strings(count, name)
        if kind != _ARRAY:
            return self.scalars(kind, count, name)
        self.room_for(count, 4 + 8, name)
        return tuple(self.value(_ARRAY, name, depth + 1) for _ in range(count))

    def scalars(self, kind: int, count: int, name: str) -> tuple[bool | int | float, ...]:
        if kind not in _SCALARS:
            raise self.error(f"value type of {name}", kind, "0 to 12")
        dtype = np.dtype(_SCALARS[kind])
        self.room_for(count, dtype.itemsize, name)
        start = self.skip(count * dtype.itemsize, name)
        values = np.frombuffer(self.bytes, dtype, count, start)
        if kind == _BOOL:
            if count and values.max() > 1:
                raise self.error(name, int(values.max()), "a boolean, 0 or 1")
            values = values.view(np.bool_)
        return tuple(values.tolist())

    def strings(self, count: int, name: str) -> tuple[str, ...]:
        self.room_for(count, 8, name)
        content, size, at = self.bytes, len(self.bytes), self.at
        strings: list[str] = []
        try:
            for _ in range(count):  # some 100,000 turns for a usual vocabulary: keep it bare
                start = at + 8
                end = start + int.from_bytes(content[at:start], "little")
                if end > size:
                    break
                strings.append(content[start:end].decode())
                at = end
        except UnicodeDecodeError as error:
            raise self.error(f"{name}, string {len(strings)},", _show(error.object), "UTF-8") from error
        self.at = at
        if len(strings) < count:
            item = f"{name}, string {len(strings)},"
            self.skip(self.u64(f"length of {item}"), item)  # raises: it does not fit
        return tuple(strings)

    def tensors(self, count: int, alignment: int) -> dict[str, TensorInfo]:
        """Read the tensors' places and check that they lie within the file, aligned and apart."""
        self.room_for(count, _SMALLEST_TENSOR, "tensor count")
        relative = [self.tensor(index) for index in range(count)]
        origin = -(-self.at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for tensor in relative:
            name = f"tensor {_show(tensor.name)}"
            if tensor.name in tensors:
                raise self.error(name, "there twice", "each name once")
            if tensor.offset % alignment:
                raise self.error(f"offset of {name}", tensor.offset, f"a multiple of the alignment {alignment}")
            offset = origin + tensor.offset
            if offset + tensor.nbytes > len(self.bytes):
                place = f"{tensor.nbytes} bytes from byte {offset} on (shape {tensor.shape}, {tensor.type.name})"
                raise self.error(name, place, f"to end within the file's {len(self.bytes)} bytes")
            tensors[tensor.name] = TensorInfo(tensor.name, tensor.shape, tensor.type, offset, tensor.nbytes)
        for before, after in pairwise(sorted(tensors.values(), key=lambda tensor: tensor.offset)):
            if before.offset + before.nbytes > after.offset:
                inside = f"partly inside tensor {_show(before.name)}"
                raise self.error(f"tensor {_show(after.name)}", inside, "tensors that lie apart")
        return tensors

    def tensor(self, index: int) -> TensorInfo:
        """Read one tensor's entry; its offset is still relative to the first tensor's alignment."""
        (key,) = self.strings(1, f"name of tensor {index}")
        name = f"tensor {_show(key)}"
        dimensions = self.u32(f"number of dimensions of {name}")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self.error(f"number of dimensions of {name}", dimensions, f"1 to {MAX_DIMENSIONS}")
        shape = tuple(self.u64(f"dimension {axis} of {name}") for axis in range(dimensions))[::-1]
        kind = self.type(name)
        block = BLOCKS[kind]
        if 0 in shape:
            raise self.error(f"shape of {name}", shape, "no zero")
        if shape[-1] % block.elements:
            raise self.error(f"row length of {name}", shape[-1], f"a multiple of {block.elements} ({kind.name})")
        nbytes = prod(shape) // block.elements * block.nbytes
        return TensorInfo(key, shape, kind, self.u64(f"offset of {name}"), nbytes)

    def type(self, name: str) -> TensorType:
        number = self.u32(f"type of {name}")
        try:
            kind = TensorType(number)
        except ValueError:
            label = f"unknown type {number}"
        else:
            if kind in BLOCKS:
                return kind
            label = f"type {kind.name}"
        supported = ", ".join(kind.name for kind in BLOCKS)
        raise UnsupportedModelError(f"{self.path}: {name} has {label}; this version supports {supported}")

    def u32(self, name: str) -> int:
        return int(_U32.unpack_from(self.bytes, self.skip(4, name))[0])

    def u64(self, name: str) -> int:
        return int(_U64.unpack_from(self.bytes, self.skip(8, name))[0])

    def skip(self, nbytes: int, name: str) -> int:
        """Move past so many bytes, which must be there; return where they start."""
        start, left = self.at, len(self.bytes) - self.at
        if nbytes > left:
            raise self.error(name, f"{nbytes} bytes at byte {start}", f"at most the {left} that are left of the file")
        self.at += nbytes
        return start

    def room_for(self, count: int, nbytes: int, name: str) -> None:
        """Check that so many items, each of at least nbytes bytes, may follow."""
        left = len(self.bytes) - self.at
        if count * nbytes > left:
            raise self.error(name, f"{count} items", f"no more than fit into the {left} bytes left of the file")
        self.items += count
        if self.items > MAX_ITEMS:
            raise self.error(name, f"{count} items", f"at most {MAX_ITEMS} in a whole header")

    def error(self, name: str, value: object, expected: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {name} is {value}, expected {expected}")
