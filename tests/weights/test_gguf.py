"""GGUF files are read as the `gguf` package reads them, and whatever else a file holds is refused by name."""

from __future__ import annotations

import os
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.errors import ModelError, ModelFileError, UnsupportedModelError
from outrider.weights.gguf import BLOCKS, GGUF, MAX_ITEMS, TensorType
from tests.tiny import default_model, tiny_llama

U8, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10
"""Numbers of metadata types."""

needs_default_model = pytest.mark.skipif(default_model() is None, reason="the default model is not on this machine")


# A file made byte by byte, so that any part of it can be wrong.


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return u64(len(content)) + content


def field(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + u32(kind) + value


def array(kind: int, count: int, items: bytes = b"") -> bytes:
    return u32(kind) + u64(count) + items


def entry(name: str = "w", dims: tuple[int, ...] = (32, 2), kind: int = TensorType.Q8_0, offset: int = 0) -> bytes:
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


def raw(
    fields: tuple[bytes, ...] = (field("general.architecture", STRING, text("llama")),),
    entries: tuple[bytes, ...] = (entry(),),
    *,
    start: bytes = b"GGUF" + u32(3),
    tensor_count: int | None = None,
    field_count: int | None = None,
    data: bytes = bytes(256),
) -> bytes:
    counts = u64(len(entries) if tensor_count is None else tensor_count)
    counts += u64(len(fields) if field_count is None else field_count)
    header = start + counts + b"".join(fields) + b"".join(entries)
    return header + bytes(-len(header) % 32) + data


RICH = raw(
    (
        field("a.u8", U8, b"\x07"),
        field("a.f32", F32, struct.pack("<f", 1.5)),
        field("a.flag", BOOL, b"\x01"),
        field("a.texts", ARRAY, array(STRING, 2, text("é") + text(""))),
        field("a.numbers", ARRAY, array(U32, 3, u32(1) + u32(2) + u32(3))),
        field("a.flags", ARRAY, array(BOOL, 2, b"\x00\x01")),
        field("a.nested", ARRAY, array(ARRAY, 2, array(U8, 1, b"\x09") + array(STRING, 1, text("x")))),
        field("a.empty", ARRAY, array(U64, 0)),
        field("general.alignment", U32, u32(64)),
    ),
    (entry("first"), entry("second", (4,), TensorType.F32, 128)),
    data=bytes(range(144)),
)


def write(folder: Path, content: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return path


# Agreement with the gguf package.


def differences(ours: GGUF, oracle: gguf.GGUFReader) -> list[str]:
    """The names of metadata fields and tensors on which the two readers disagree."""
    theirs = {key: value.contents() for key, value in oracle.fields.items() if not key.startswith("GGUF.")}
    mine = {key: list(value) if isinstance(value, tuple) else value for key, value in ours.metadata.items()}
    names = [key for key in theirs.keys() | mine.keys() if theirs.get(key) != mine.get(key)]
    tensors = {tensor.name: tensor for tensor in oracle.tensors}
    for name in tensors.keys() | ours.tensors.keys():
        if name not in tensors or name not in ours.tensors:
            names.append(name)
            continue
        tensor, info = tensors[name], ours.tensors[name]
        same_place = (info.offset, info.nbytes) == (tensor.data_offset, tensor.n_bytes)
        same_kind = (info.shape, info.type) == (tuple(reversed(tensor.shape.tolist())), tensor.tensor_type)
        if not (same_place and same_kind and ours.data(name).tobytes() == tensor.data.tobytes()):
            names.append(name)
    return names


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.name)
def test_agrees_with_the_gguf_package_on_every_type(tmp_path: Path, kind: TensorType) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf", weight_type=kind)
    assert differences(GGUF.open(path), gguf.GGUFReader(path)) == []


def test_the_comparison_notices_a_shifted_tensor_and_a_changed_field(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf")
    ours = GGUF.open(path)
    shifted = replace(ours.tensors["output.weight"], offset=ours.tensors["output.weight"].offset - 32)
    faulty = replace(
        ours,
        tensors={**ours.tensors, "output.weight": shifted},
        metadata={**ours.metadata, "llama.block_count": 3},
    )
    assert sorted(differences(faulty, gguf.GGUFReader(path))) == ["llama.block_count", "output.weight"]


@needs_default_model
def test_agrees_with_the_gguf_package_on_the_default_model() -> None:
    path = default_model()
    assert path is not None
    assert differences(GGUF.open(path), gguf.GGUFReader(path)) == []


LINUX = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="memory is looked at as Linux shows it")


@LINUX
@needs_default_model
def test_opening_the_default_model_reads_its_header_alone(tmp_path: Path) -> None:
    path = default_model()
    assert path is not None
    own = Path(shutil.copy(path, tmp_path))  # which nobody else has mapped
    file = GGUF.open(own)
    assert file.tensors
    assert 0 < resident(own) < own.stat().st_size / 8


@LINUX
def test_a_released_file_takes_no_memory_and_can_be_read_again(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf", hidden=256)
    file = GGUF.open(path)
    before = {name: file.data(name).tobytes() for name in file.tensors}
    assert resident(path) >= sum(map(len, before.values()))
    file.release()
    assert resident(path) == 0
    assert {name: file.data(name).tobytes() for name in file.tensors} == before


def resident(path: Path) -> int:
    """Bytes of a mapped file that are in this process's memory."""
    found = re.search(rf"{re.escape(str(path))}\n(?:\w+: .*\n)*?Rss: *(\d+) kB", Path("/proc/self/smaps").read_text())
    assert found is not None
    return int(found[1]) * 1024


def test_tensor_types_are_numbered_and_sized_as_in_ggml() -> None:
    theirs = {kind.name: kind.value for kind in gguf.GGMLQuantizationType}
    assert {kind.name: kind.value for kind in TensorType}.items() <= theirs.items()
    assert {kind.value: tuple(block) for kind, block in BLOCKS.items()}.items() <= gguf.GGML_QUANT_SIZES.items()


def test_values_of_every_kind_are_read(tmp_path: Path) -> None:
    file = GGUF.open(write(tmp_path, RICH))
    assert dict(file.metadata) == {
        "a.u8": 7,
        "a.f32": 1.5,
        "a.flag": True,
        "a.texts": ("é", ""),
        "a.numbers": (1, 2, 3),
        "a.flags": (False, True),
        "a.nested": ((9,), ("x",)),
        "a.empty": (),
        "general.alignment": 64,
    }
    assert file.tensors["first"].shape == (2, 32)
    assert file.data("second").tolist() == list(range(128, 144))


def test_version_2_is_read(tmp_path: Path) -> None:
    assert GGUF.open(write(tmp_path, raw(start=b"GGUF" + u32(2)))).text("general.architecture") == "llama"


def test_data_is_not_copied_cannot_be_written_and_outlives_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, RICH)
    data = GGUF.open(path).data("first")
    path.unlink()
    assert not data.flags.owndata
    assert data[:3].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 1


# Typed fields.


def test_getters_return_the_field_or_its_default(tmp_path: Path) -> None:
    file = GGUF.open(write(tmp_path, RICH))
    assert file.integer("a.u8", minimum=7, maximum=7) == 7
    assert file.number("a.u8") == 7.0
    assert file.number("a.f32", minimum=0) == 1.5
    assert file.integer("absent", default=0) == 0
    assert file.number("absent", default=0.5) == 0.5
    assert file.text("absent", default="") == ""


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda file: file.integer("absent"), "'absent' is missing"),
        (lambda file: file.integer("a.f32"), r"'a.f32' is 1.5, expected an integer"),
        (lambda file: file.integer("a.flag"), "'a.flag' is True, expected an integer"),
        (lambda file: file.integer("a.u8", minimum=8), r"'a.u8' is 7, expected an integer in \[8, inf\]"),
        (lambda file: file.integer("a.u8", maximum=6), r"'a.u8' is 7, expected an integer in \[-inf, 6\]"),
        (lambda file: file.number("a.texts"), "'a.texts' is .*, expected a number"),
        (lambda file: file.number("a.flag"), "'a.flag' is True, expected a number"),
        (lambda file: file.number("a.f32", maximum=1), r"'a.f32' is 1.5, expected a finite number in \[-inf, 1\]"),
        (lambda file: file.text("a.u8"), "'a.u8' is 7, expected a string"),
        (lambda file: file.data("absent"), "tensor 'absent' is missing"),
    ],
)
def test_getters_name_the_field_its_value_and_what_they_expect(
    tmp_path: Path, read: Callable[[GGUF], object], said: str
) -> None:
    path = write(tmp_path, RICH)
    with pytest.raises(ModelFileError, match=said) as caught:
        read(GGUF.open(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_must_be_finite(tmp_path: Path, value: float) -> None:
    file = GGUF.open(write(tmp_path, raw((field("x", F32, struct.pack("<f", value)),))))
    with pytest.raises(ModelFileError, match=f"'x' is {value}, expected a finite number"):
        file.number("x")


# Broken and hostile files.

DEEP = array(U8, 0)
for _ in range(5):
    DEEP = array(ARRAY, 1, DEEP)

HOSTILE = {
    "empty": (b"", "empty"),
    "foreign": (b"PK\x03\x04" + bytes(100), r"not a GGUF file: it starts with b'PK"),
    "only a magic": (b"GGUF", "version is 4 bytes at byte 4"),
    "git lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"),
    "version 1": (raw(start=b"GGUF" + u32(1)), "version is 1, expected 2 or 3"),
    "version 4": (raw(start=b"GGUF" + u32(4)), "version is 4, expected 2 or 3"),
    "big-endian": (raw(start=b"GGUF" + struct.pack(">I", 3)), "version is 3 in big-endian order"),
    "too many tensors": (raw(tensor_count=2**64 - 1), f"tensor count is {2**64 - 1} items"),
    "too many fields": (raw(field_count=2**63), f"metadata field count is {2**63} items"),
    "one field too many": (raw(field_count=2), "name of tensor 0"),
    "key past the end": (raw((u64(2**64 - 1) + b"key",)), f"key of metadata field 0.* is {2**64 - 1} bytes"),
    "key is not utf-8": (raw((text(b"\xff") + u32(U8) + b"\0",)), r"key of metadata field 0.* is b'\\xff'.*UTF-8"),
    "same key twice": (raw((field("x", U8, b"\0"),) * 2), "metadata field 1 is 'x', expected each key once"),
    "unknown value type": (raw((field("x", 13, b"\0"),)), "value type of field 'x' is 13, expected 0 to 12"),
    "boolean of 2": (raw((field("x", BOOL, b"\2"),)), "field 'x' is 2, expected a boolean"),
    "text past the end": (raw((field("x", STRING, u64(2**62)),)), f"field 'x'.* is {2**62} bytes"),
    "text is not utf-8": (raw((field("x", STRING, text(b"a\x80")),)), r"field 'x'.* is b'a\\x80', expected UTF-8"),
    "array too long": (raw((field("x", ARRAY, array(U32, 2**62)),)), f"field 'x' is {2**62} items"),
    "array overflows": (raw((field("x", ARRAY, array(U64, 2**61)),)), f"field 'x' is {2**61} items"),
    "texts too many": (raw((field("x", ARRAY, array(STRING, 2**61)),)), f"field 'x' is {2**61} items"),
    "texts past the end": (
        raw((field("x", ARRAY, array(STRING, 2, text("ok") + u64(2**64 - 9))),)),
        f"field 'x', string 1, is {2**64 - 9} bytes",
    ),
    "arrays too many": (raw((field("x", ARRAY, array(ARRAY, 2**61)),)), f"field 'x' is {2**61} items"),
    "arrays too deep": (raw((field("x", ARRAY, DEEP),)), "field 'x' is an array nested more than 4 deep"),
    "array of unknown": (raw((field("x", ARRAY, array(99, 1)),)), "value type of field 'x' is 99"),
    "huge header": (
        raw((field("x", ARRAY, array(U8, MAX_ITEMS, bytes(MAX_ITEMS))),)),
        f"field 'x' is {MAX_ITEMS} items, expected at most {MAX_ITEMS}",
    ),
    "alignment 0": (raw((field("general.alignment", U32, u32(0)),)), "'general.alignment' is 0, expected"),
    "alignment 24": (raw((field("general.alignment", U32, u32(24)),)), "'general.alignment' is 24.*power of two"),
    "alignment text": (raw((field("general.alignment", STRING, text("32")),)), "'general.alignment' is '32'"),
    "alignment huge": (raw((field("general.alignment", U64, u64(2**63)),)), f"'general.alignment' is {2**63}"),
    "no dimension": (raw(entries=(entry(dims=()),)), "number of dimensions of tensor 'w' is 0, expected 1 to 4"),
    "five dimensions": (raw(entries=(entry(dims=(32,) * 5),)), "number of dimensions of tensor 'w' is 5"),
    "zero dimension": (raw(entries=(entry(dims=(32, 0)),)), r"shape of tensor 'w' is \(0, 32\)"),
    "dimensions overflow": (
        raw(entries=(entry(dims=(2**63, 2)),)),
        rf"tensor 'w' is \d+ bytes from byte .*\(shape \(2, {2**63}\), Q8_0\)",
    ),
    "not whole blocks": (raw(entries=(entry(dims=(33, 2)),)), "row length of tensor 'w' is 33, expected a multiple"),
    "same tensor twice": (raw(entries=(entry(), entry(offset=96))), "tensor 'w' is there twice"),
    "misaligned": (raw(entries=(entry(offset=8),)), "offset of tensor 'w' is 8, expected a multiple"),
    "past the end": (raw(entries=(entry(offset=224),)), "tensor 'w' is 68 bytes from byte .*expected to end within"),
    "offset overflows": (raw(entries=(entry(offset=2**64 - 32),)), "tensor 'w' is 68 bytes from byte"),
    "overlapping": (raw(entries=(entry("v"), entry(offset=64))), "tensor 'w' is partly inside tensor 'v'"),
    "tensor name past the end": (raw(entries=(u64(2**40) + bytes(24),)), f"name of tensor 0.* is {2**40} bytes"),
}


@pytest.mark.parametrize("content", [raw(), RICH], ids=["raw", "rich"])
def test_the_file_that_the_hostile_ones_are_made_from_is_sound(tmp_path: Path, content: bytes) -> None:
    assert GGUF.open(write(tmp_path, content)).tensors


@pytest.mark.parametrize(("content", "said"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_is_refused_by_name(tmp_path: Path, content: bytes, said: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ModelFileError, match=said) as caught:
        GGUF.open(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(("number", "name"), [(TensorType.Q4_K, "type Q4_K"), (200, "unknown type 200")])
def test_a_type_that_we_lack_is_named_with_those_that_we_have(tmp_path: Path, number: int, name: str) -> None:
    path = write(tmp_path, raw(entries=(entry(kind=number),)))
    with pytest.raises(UnsupportedModelError, match=rf"tensor 'w' has {name}; .*F32.*Q4_1.*Q8_0"):
        GGUF.open(path)


def test_something_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe):
        with pytest.raises(ModelFileError, match="not a regular file"):
            GGUF.open(path)
    with pytest.raises(ModelFileError, match="no such file"):
        GGUF.open(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match="cannot be read"):
        GGUF.open(tmp_path / ("long" * 100))


def refuses_or_reads(open_file: Callable[[Path], GGUF], path: Path, content: bytes) -> None:
    """Fails unless a file is either read into sound values or refused with a ModelError."""
    path.write_bytes(content)
    try:
        file = open_file(path)
    except ModelError:
        return
    for tensor in file.tensors.values():
        assert file.data(tensor.name).nbytes == tensor.nbytes
        assert tensor.nbytes * BLOCKS[tensor.type].elements == np.prod(tensor.shape) * BLOCKS[tensor.type].nbytes


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    for length in range(len(RICH)):
        with pytest.raises(ModelFileError):
            GGUF.open(write(tmp_path, RICH[:length]))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, len(RICH) - 1), st.integers(0, 255)), min_size=1, max_size=6),
    length=st.one_of(st.just(len(RICH)), st.integers(0, len(RICH))),
)
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, changes: list[tuple[int, int]], length: int) -> None:
    content = bytearray(RICH)
    for place, value in changes:
        content[place] = value
    refuses_or_reads(GGUF.open, tmp_path / "damaged.gguf", bytes(content[:length]))


def test_a_reader_without_bounds_checks_fails_that_test(tmp_path: Path) -> None:
    with pytest.raises((ValueError, IndexError)):
        refuses_or_reads(gguf.GGUFReader, tmp_path / "damaged.gguf", RICH[:100])
