"""`outrider export` writes a head in the official layout, and says what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from outrider.cli import app
from outrider.heads import load
from outrider.heads.checkpoint import write_compact
from tests.heads.tiny_head import tiny_head


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["export", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.mark.parametrize(("dtype", "name"), [("bf16", "bfloat16"), ("f16", "float16")])
def test_a_compact_head_becomes_a_folder(tmp_path: Path, dtype: str, name: str) -> None:
    folder = tiny_head(tmp_path / "in")
    write_compact(load(folder), tmp_path / "head.safetensors")
    code, output = run(tmp_path / "head.safetensors", "-o", tmp_path / "out", "--dtype", dtype)
    assert code == 0, output
    tensors = load_file(tmp_path / "out/model.safetensors")
    assert tensors.keys() == load_file(folder / "model.safetensors").keys()
    assert str(tensors["fc.weight"].dtype) == f"torch.{name}"
    assert json.loads((tmp_path / "out/config.json").read_text())["torch_dtype"] == name
    assert load(tmp_path / "out").config == load(folder).config


def test_what_cannot_be_exported_is_named(tmp_path: Path) -> None:
    folder = tiny_head(tmp_path / "in")
    code, output = run(folder, "-o", folder)
    assert (code, "exists already" in output) == (2, True)
    code, output = run(folder, "-o", tmp_path / "out", "--dtype", "f64")
    assert (code, "neither bf16 nor f16" in output) == (2, True)
    code, output = run(tmp_path / "nothing.safetensors", "-o", tmp_path / "out")
    assert (code, "nothing.safetensors" in output) == (1, True)
    assert not (tmp_path / "out").exists()
