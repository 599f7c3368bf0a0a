"""A head that ships is used for the very file that it was trained for, and for no other."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from outrider.heads import load, packaged
from outrider.heads.checkpoint import write_compact
from outrider.heads.packaged import TARGET_HASH, TARGET_SIZE
from tests.heads.tiny_head import tiny_head


def test_the_head_is_found_by_size_and_hash(tmp_path: Path) -> None:
    target, other, longer = tmp_path / "a.gguf", tmp_path / "b.gguf", tmp_path / "c.gguf"
    target.write_bytes(b"one model")
    other.write_bytes(b"two model")
    longer.write_bytes(b"one model more")
    assert packaged(target, tmp_path / "nothing") is None
    metadata = {TARGET_SIZE: "9", TARGET_HASH: hashlib.sha256(b"one model").hexdigest()}
    head = replace(load(tiny_head(tmp_path / "head")), metadata=metadata)
    folder = tmp_path / "packaged"
    folder.mkdir()
    write_compact(head, folder / "head.safetensors")
    assert packaged(target, folder) == folder / "head.safetensors"
    assert packaged(other, folder) is None
    assert packaged(longer, folder) is None
    assert load(folder / "head.safetensors").metadata == metadata
