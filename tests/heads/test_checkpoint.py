"""Files of heads: what is missing, unknown, misshapen or inconsistent is refused by name; what is written reads back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.errors import ModelError, ModelFileError, UnsupportedModelError
from outrider.heads import load
from outrider.heads.checkpoint import read_compact, read_official, small, write_compact, write_official
from outrider.weights.tensor_types import TensorType
from tests.heads.tiny_head import DRAFT_VOCABULARY, VOCABULARY, tiny_head


def with_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def with_config(folder: Path, **fields: object) -> Path:
    document = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps({k: v for k, v in document.items() if v is not ...}))
    return folder


NAMES = [
    "d2t",
    "fc.weight",
    "lm_head.weight",
    "midlayer.hidden_norm.weight",
    "midlayer.input_layernorm.weight",
    *(f"midlayer.mlp.{part}_proj.weight" for part in ("down", "gate", "up")),
    "midlayer.post_attention_layernorm.weight",
    *(f"midlayer.self_attn.{part}_proj.weight" for part in "koqv"),
    "norm.weight",
    "t2d",
]


def test_these_are_all_tensors(tmp_path: Path) -> None:
    assert sorted(load_file(tiny_head(tmp_path) / "model.safetensors")) == NAMES


@pytest.mark.parametrize("name", [name for name in NAMES if name != "t2d"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    folder = with_tensors(tiny_head(tmp_path), lambda tensors: tensors.pop(name))
    with pytest.raises(ModelFileError, match=f"tensor '{name}' is missing"):
        load(folder)


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    folder = with_tensors(tiny_head(tmp_path), lambda tensors: tensors.update({"fc.bias": torch.zeros(64)}))
    with pytest.raises(ModelFileError, match=r"tensor 'fc.bias' has no place"):
        load(folder)


def test_a_renamed_tensor_is_named_both_ways(tmp_path: Path) -> None:
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            if name.startswith("midlayer"):
                tensors[name.replace("midlayer", "layers.0")] = tensors.pop(name)

    with pytest.raises(
        ModelFileError, match=r"'midlayer.hidden_norm.weight' is missing.*'layers.0.hidden_norm.weight'"
    ):
        load(with_tensors(tiny_head(tmp_path), rename))


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_of_another_shape_is_named(tmp_path: Path, name: str) -> None:
    def enlarge(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = torch.cat([tensors[name], tensors[name][:1]])

    with pytest.raises(ModelFileError, match=rf"tensor '{name}' is .* expected"):
        load(with_tensors(tiny_head(tmp_path), enlarge))


@pytest.mark.parametrize(
    ("name", "dtype"), [("norm.weight", torch.int64), ("d2t", torch.float32), ("t2d", torch.uint8)]
)
def test_a_tensor_of_another_kind_is_named(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    folder = with_tensors(tiny_head(tmp_path), lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    with pytest.raises(ModelFileError, match=f"tensor '{name}' is"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d2t: d2t + VOCABULARY, "makes draft id 0 token .* expected 0 to 268"),
        (lambda d2t: d2t - d2t[0] - 1, "makes draft id 0 token -1"),
        (lambda d2t: d2t + torch.arange(DRAFT_VOCABULARY) % 2 * -300, "makes draft id 1 token -"),
        (lambda d2t: torch.cat([d2t[:5], d2t[4:5] - 1, d2t[6:]]), "draft id 5 token .*, after .* ascending"),
        (lambda d2t: d2t.flip(0) * 0, "'t2d' and 'd2t' do not agree on token"),
    ],
)
def test_a_wrong_map_of_ids_is_refused(
    tmp_path: Path, change: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    """B77: ascending, in range, and the same in both tensors."""
    folder = with_tensors(tiny_head(tmp_path), lambda tensors: tensors.update(d2t=change(tensors["d2t"])))
    with pytest.raises(ModelFileError, match=message):
        load(folder)


def test_absolute_ids_in_place_of_offsets_are_refused(tmp_path: Path) -> None:
    """B77: they look like a map to twice the ids."""
    folder = with_tensors(tiny_head(tmp_path), lambda t: t.update(d2t=t["d2t"] + torch.arange(DRAFT_VOCABULARY)))
    with pytest.raises(ModelFileError, match="d2t"):
        load(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": ...}, "field 'hidden_size' is None"),
        ({"hidden_size": 64.5}, "'hidden_size' is 64.5, expected a whole number"),
        ({"hidden_size": "64"}, "'hidden_size' is '64'"),
        ({"vocab_size": 0}, "'vocab_size' is 0"),
        ({"draft_vocab_size": 300}, "'draft_vocab_size' is 300, expected a whole number from 1 to 269"),
        ({"num_hidden_layers": 2}, "'num_hidden_layers' is 2, this version supports 1"),
        ({"model_type": "qwen2"}, "'model_type' is 'qwen2', this version supports 'llama'"),
        ({"attention_bias": True}, "'attention_bias' is True"),
        ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "'rope_scaling' is"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"norm_before_residual": True}, "'norm_before_residual' is True"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 14, 26]}}, "'eagle_aux_hidden_state_layer_ids' is"),
        ({"num_key_value_heads": 3}, "'num_attention_heads' is 4, expected a multiple of 3"),
        ({"head_dim": 24}, "'head_dim' is 24"),
        ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' is nan"),
    ],
)
def test_a_config_that_cannot_be_honoured_is_refused(tmp_path: Path, fields: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(with_config(tiny_head(tmp_path), **fields))


def test_the_rope_of_newer_configs_is_read(tmp_path: Path) -> None:
    rope = {"rope_theta": 5e5, "rope_type": "default"}
    head = read_official(with_config(tiny_head(tmp_path), rope_theta=..., rope_parameters=rope))
    assert head.config.rope_base == 5e5


@pytest.mark.parametrize("content", ["", "[]", "{", "null"])
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, content: str) -> None:
    (tiny_head(tmp_path) / "config.json").write_text(content)
    with pytest.raises(ModelFileError, match=r"config.json"):
        load(tmp_path)


def test_a_folder_without_a_head_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"config.json: no such file.*pytorch_model.bin"):
        load(tmp_path)


@pytest.mark.parametrize("embedding", [False, True])
@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_official_out_is_official_in(tmp_path: Path, dtype: str, embedding: bool) -> None:
    torch_dtype = {"F16": torch.float16, "BF16": torch.bfloat16}[dtype]
    folder = tiny_head(tmp_path / "in", dtype=torch_dtype, embedding=embedding)
    write_official(read_official(folder), tmp_path / "out", dtype)
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "out"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype
        assert torch.equal(after[name], tensor)
    assert read_official(tmp_path / "out").config == read_official(folder).config
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == ["LlamaForCausalLMEagle3"]


def test_a_compact_file_holds_the_same_head(tmp_path: Path) -> None:
    head = load(tiny_head(tmp_path, embedding=True))
    assert {weight.type for weight in head.matrices.values()} == {TensorType.Q4_1, TensorType.Q8_0}
    write_compact(head, tmp_path / "head.safetensors")
    again = load(tmp_path / "head.safetensors")
    assert again.config == head.config
    np.testing.assert_array_equal(again.target_ids, head.target_ids)
    for name, matrix in head.matrices.items():
        assert again.matrices[name].type == matrix.type == small(name)
        np.testing.assert_array_equal(again.matrices[name].raw, matrix.raw)
    for name, values in head.norms.items():
        np.testing.assert_array_equal(again.norms[name], values)
    assert (tmp_path / "head.safetensors").stat().st_size < 0.25 * (tmp_path / "model.safetensors").stat().st_size


def test_a_compact_head_goes_back_to_the_official_layout(tmp_path: Path) -> None:
    head = load(tiny_head(tmp_path))
    write_compact(head, tmp_path / "head.safetensors")
    write_official(read_compact(tmp_path / "head.safetensors"), tmp_path / "out", "F16")
    exported = read_official(tmp_path / "out")
    for name, matrix in head.matrices.items():
        np.testing.assert_allclose(exported.matrices[name].floats(), matrix.floats(), rtol=1e-3, atol=1e-6)
    again = exported.quantised(small)  # quantising what was quantised changes next to nothing
    for name, matrix in head.matrices.items():
        np.testing.assert_allclose(again.matrices[name].floats(), matrix.floats(), rtol=0.02, atol=2e-3)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="its format is 'not said', expected 'outrider-eagle3'"):
        load(tiny_head(tmp_path) / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"No such file"):
        load(tmp_path / "nothing.safetensors")


def test_a_compact_file_with_an_unknown_type_is_refused(tmp_path: Path) -> None:
    from outrider.weights import safetensors

    head = load(tiny_head(tmp_path))
    write_compact(head, tmp_path / "head.safetensors")
    file = safetensors.SafeTensors.open(tmp_path / "head.safetensors")
    tensors = {name: (tensor.dtype, file.array(name)) for name, tensor in file.tensors.items()}
    for label in ("Q9_9", "Q8_K", None):
        types = json.loads(file.metadata["types"]) | {"fc.weight": label}
        safetensors.write(tmp_path / "bad.safetensors", tensors, {**file.metadata, "types": json.dumps(types)})
        with pytest.raises(ModelFileError, match=r"'fc.weight' of 192 inputs has type"):
            load(tmp_path / "bad.safetensors")
    config = json.loads(file.metadata["config"]) | {"num_hidden_layers": 3}
    safetensors.write(tmp_path / "bad.safetensors", tensors, {**file.metadata, "config": json.dumps(config)})
    with pytest.raises(UnsupportedModelError, match="'num_hidden_layers' is 3"):
        load(tmp_path / "bad.safetensors")
