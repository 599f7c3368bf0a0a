"""Costs are measured once per model and machine, and whatever is wrong with what was stored, measured again."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.errors import RequestError
from outrider.llm import LLM
from outrider.policy import store as storing
from outrider.policy.costs import Costs
from outrider.policy.store import CostStore
from tests.tiny import tiny_llama

COSTS = Costs((1, 2, 8), (128, 1024), ((0.001, 0.002, 0.003), (0.002, 0.002, 0.006)))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(storing, "folder", lambda: tmp_path / "costs")
    return tmp_path / "costs"


def place(model_file: Path, **changes: object) -> CostStore:
    values: dict[str, Any] = {"threads": 2, "kernels": "avx2", "context_length": 512} | changes
    return CostStore.of(model_file, SimpleNamespace(**values))  # type: ignore[arg-type]


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF and more")
    return file


def test_what_is_saved_is_loaded_and_nothing_else_is_left(model_file: Path, folder: Path) -> None:
    store = place(model_file)
    assert store.load() is None
    assert store.save(COSTS) == COSTS == store.load()
    assert list(folder.iterdir()) == [store.path]


@pytest.mark.parametrize("change", [{"threads": 1}, {"kernels": "plain"}, {"context_length": 1024}])
def test_what_changes_the_costs_changes_the_place(model_file: Path, change: dict[str, object]) -> None:
    assert place(model_file) == place(model_file)
    assert place(model_file, **change) != place(model_file)


def test_another_model_or_machine_has_another_place(model_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place(model_file)
    monkeypatch.setattr("outrider.machine.processor", lambda: "another")
    assert place(model_file) != before
    monkeypatch.undo()
    model_file.write_bytes(b"GGUF and less")
    assert place(model_file) != before


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b"null", b'{"rows": [1, 2]}', b"[" * 100_000,
     b'{"rows": [1, Infinity], "contexts": [128], "seconds": [[1.0, 2.0]]}',
     b'{"rows": [1, 2], "contexts": [128], "seconds": [[1.0, 1' + b"0" * 400 + b"]]}",
     b'{"rows": [1, 1' + b"0" * 5000 + b'], "contexts": [128], "seconds": [[1.0, 2.0]]}',
     *(json.dumps(wrong).encode() for wrong in (
        {"rows": [1, 2], "contexts": [128], "seconds": [[1.0]]},
        {"rows": [1], "contexts": [128], "seconds": [[1.0]]},
        {"rows": [2, 4], "contexts": [128], "seconds": [[1.0, 2.0]]},
        {"rows": [1, 2], "contexts": [], "seconds": []},
        {"rows": [1, 2], "contexts": [128], "seconds": [[2.0, 1.0]]},
        {"rows": [1, 2], "contexts": [128], "seconds": [[0.0, 1.0]]},
        {"rows": [1, 2], "contexts": [128], "seconds": [[1.0, float("inf")]]},
        {"rows": [1, 2], "contexts": [128], "seconds": [[1.0, float("nan")]]},
        {"rows": [1, 2], "contexts": [128], "seconds": [["a", "b"]]},
        {"rows": 5, "contexts": [128], "seconds": [[1.0, 2.0]]},
     ))],
)  # fmt: skip
def test_a_broken_file_is_as_good_as_none(model_file: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store = place(model_file)
    store.save(COSTS)
    store.path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert store.load() is None
    assert str(store.path) in caplog.text
    assert store.save(COSTS) == store.load()


def test_a_folder_that_cannot_be_made_costs_a_warning(
    model_file: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("in the way")
    assert place(model_file).save(COSTS) == COSTS
    assert "cannot be stored" in caplog.text


def test_a_write_that_is_interrupted_leaves_what_was_there(
    model_file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = place(model_file)
    store.save(COSTS)
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("full")))
    store.save(Costs((1, 2), (0,), ((1.0, 1.0),)))
    monkeypatch.undo()
    monkeypatch.setattr(storing, "folder", lambda: folder)
    assert place(model_file).load() == COSTS
    assert list(folder.iterdir()) == [store.path], "nothing half-written is left"


def test_a_model_is_measured_when_it_is_first_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf")
    first = LLM(path, threads=1).costs
    monkeypatch.setattr("outrider.llm.measure", lambda model, progress: COSTS)
    assert LLM(path, threads=1).costs == first
    assert LLM(path, threads=1, recalibrate=True).costs == COSTS
    assert LLM(path, threads=1).costs == COSTS
    assert LLM(path, threads=1, costs=first).costs == first
    with pytest.raises(RequestError, match="recalibrate=True is of no use with costs"):
        LLM(path, threads=1, costs=first, recalibrate=True)
