"""Safetensors files: ours are read by the `safetensors` package and its by us; a broken one is an error, never a crash."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import ModelError, ModelFileError, UnsupportedModelError
from outrider.weights.safetensors import SafeTensors, write

VALUES = {
    "a": ("F32", np.arange(6, dtype=np.float32).reshape(2, 3)),
    "b": ("F16", np.arange(4, dtype=np.float16)),
    "c": ("I64", np.array([[1], [-(2**40)]])),
    "d": ("BOOL", np.array([True, False, True])),
    "e": ("U8", np.zeros((0, 4), np.uint8)),
    "f": ("I32", np.array(7, np.int32)),
}


def test_files_agree_with_the_safetensors_package(tmp_path: Path) -> None:
    write(tmp_path / "ours", VALUES, {"made": "here"})
    theirs = safetensors.numpy.load_file(tmp_path / "ours")
    safetensors.numpy.save_file({name: values for name, (_, values) in VALUES.items()}, tmp_path / "theirs")
    ours = SafeTensors.open(tmp_path / "theirs")
    for name, (dtype, values) in VALUES.items():
        np.testing.assert_array_equal(theirs[name], values)
        np.testing.assert_array_equal(ours.array(name), values)
        assert ours.tensors[name].dtype == dtype
        assert ours.array(name).dtype == values.dtype
    assert SafeTensors.open(tmp_path / "ours").metadata == {"made": "here"}


def file(path: Path, header: object, data: bytes = bytes(8)) -> Path:
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(content)) + content + data)
    return path


def entry(**fields: object) -> dict[str, object]:
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | fields}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{", "not JSON"),
        ([], "is a list, expected an object"),
        ({"__metadata__": {"a": 1}}, "no object of strings"),
        ({"x": 5}, "the entry of tensor 'x' is 5"),
        (entry(shape=[3]), "data_offsets of tensor 'x'"),
        (entry(shape=[-2]), "shape of tensor 'x'"),
        (entry(shape=[True, 2]), "shape of tensor 'x'"),
        (entry(shape="2"), "shape of tensor 'x'"),
        (entry(data_offsets=[4, 12]), "within the file's 8 bytes of data"),
        (entry(data_offsets=[8, 0]), "data_offsets of tensor 'x'"),
        (entry(data_offsets=[0]), "data_offsets of tensor 'x'"),
        (entry(shape=[2**40], data_offsets=[0, 2**42]), "data_offsets of tensor 'x'"),
    ],
)
def test_a_broken_header_is_refused_by_name(tmp_path: Path, header: object, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        SafeTensors.open(file(tmp_path / "x", header))


def test_an_unknown_dtype_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="tensor 'x' has dtype 'F8_E4M3'"):
        SafeTensors.open(file(tmp_path / "x", entry(dtype="F8_E4M3")))


@pytest.mark.parametrize("content", [b"", b"abc", bytes(8), struct.pack("<Q", 2**60), struct.pack("<Q", 50) + b"{}"])
def test_what_is_no_such_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"safetensors|JSON"):
        SafeTensors.open(tmp_path / "x")


@settings(max_examples=200)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged"
    write(path, VALUES, {})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        opened = SafeTensors.open(path)
    except ModelError:
        return
    for name in opened.tensors:
        opened.array(name).tobytes()
