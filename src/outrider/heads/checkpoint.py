"""Files of EAGLE-3 heads: the official layout, and a compact one that ships quantised.

    official   a folder with `config.json` and `model.safetensors`, as SafeAILab/EAGLE writes and vLLM and SGLang read
    compact    one .safetensors file: the same tensors, matrices as bytes of 4- or 8-bit blocks, whose types and whose
               config stand in its metadata

`load` reads either; a tensor that is missing, unknown or wrongly shaped is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from outrider.errors import ModelFileError
from outrider.heads.config import DRAFTABLE, EMBEDDING, FUSER, NORMS, OUTPUT, TARGET_IDS, HeadConfig, parse
from outrider.types import FloatArray, IntArray
from outrider.weights import safetensors
from outrider.weights.quantise import quantise, to_bfloat
from outrider.weights.safetensors import SafeTensors
from outrider.weights.tensor_types import BLOCKS, TensorType
from outrider.weights.weight import Weight

FORMAT = "outrider-eagle3"
"""What the metadata of a compact file calls its format."""

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_FLOATS = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16}
_TORCH = {"F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A head's weights.

    matrices    by official name; EMBEDDING only where it has its own.
    norms       by official name, float32.
    target_ids  [draft vocabulary], ascending: the target's id of each draft id.
    metadata    what else a compact file says of it.
    """

    config: HeadConfig
    matrices: Mapping[str, Weight]
    norms: Mapping[str, FloatArray]
    target_ids: IntArray
    metadata: Mapping[str, str]

    def quantised(self, kinds: Callable[[str], TensorType]) -> Head:
        """The head with each matrix in the type that `kinds` says for its name."""
        matrices = {}
        for name, weight in self.matrices.items():
            kind = kinds(name)
            raw = weight.raw if kind == weight.type else quantise(weight.floats(), kind)
            matrices[name] = Weight(name, kind, weight.outputs, weight.inputs, raw)
        return replace(self, matrices=matrices)

    def within(self, vocabulary: int) -> Head:
        """The head of a target that has fewer logits than its files have rows: it proposes none of the others.

        Raises ModelFileError if it proposes nothing else.
        """
        if vocabulary == self.config.vocabulary:
            return self
        count = int(self.target_ids.searchsorted(vocabulary))
        if not count:
            raise ModelFileError(f"the draft head proposes only tokens that the tokenizer, with {vocabulary}, lacks")
        config = replace(self.config, vocabulary=vocabulary, draft_vocabulary=count)
        matrices = {**self.matrices, OUTPUT: self.matrices[OUTPUT].rows(count)}
        return replace(self, config=config, matrices=matrices, target_ids=self.target_ids[:count])


def small(name: str) -> TensorType:
    """The types of a head that is to be fast: four bits, where that costs no acceptance."""
    return TensorType.Q8_0 if name in (FUSER, EMBEDDING) else TensorType.Q4_1


def load(path: str | Path) -> Head:
    """The head of a folder in the official layout, quantised as `small` says, or of a compact file, as it is.

    Raises ModelFileError or UnsupportedModelError, naming the tensor or field.
    """
    path = Path(path)
    return read_official(path).quantised(small) if path.is_dir() else read_compact(path)


def read_official(folder: Path) -> Head:
    """A head in the official layout, its matrices in the file's own precision."""
    config_path, weights_path = folder / _CONFIG, folder / _WEIGHTS
    for path in (config_path, weights_path):
        if not path.is_file():
            held = ", ".join(sorted(item.name for item in folder.iterdir())[:10]) or "nothing"
            raise ModelFileError(f"{path}: no such file; an EAGLE-3 head is {_CONFIG} and {_WEIGHTS}; there is {held}")
    config = parse(_json(config_path.read_bytes(), config_path), str(config_path))
    file = SafeTensors.open(weights_path)
    _check_names(file, config)
    matrices = {}
    for name, shape in _matrices_of(file, config).items():
        _check_shape(file, name, shape, _FLOATS)
        kind = _FLOATS[file.tensors[name].dtype]
        matrices[name] = Weight(name, kind, *shape, file.array(name).reshape(-1).view(np.uint8))
    return Head(config, matrices, _norms(file, config), _target_ids(file, config), {})


def write_official(head: Head, folder: Path, dtype: Literal["F16", "BF16"] = "BF16") -> None:
    """Write the official layout; a folder that is not there is made."""

    def half(values: FloatArray) -> tuple[str, npt.NDArray[Any]]:
        return dtype, to_bfloat(values) if dtype == "BF16" else values.astype(np.float16)

    config = head.config
    tensors = {name: half(weight.floats()) for name, weight in head.matrices.items()}
    tensors |= {name: half(values) for name, values in head.norms.items()}
    draftable = np.zeros(config.vocabulary, np.bool_)
    draftable[head.target_ids] = True
    tensors[TARGET_IDS] = "I64", head.target_ids - np.arange(config.draft_vocabulary)
    tensors[DRAFTABLE] = "BOOL", draftable
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.write(folder / _WEIGHTS, tensors, {"format": "pt"})
    (folder / _CONFIG).write_text(json.dumps(config.document(_TORCH[dtype]), indent=2) + "\n", "utf-8")


def read_compact(path: Path) -> Head:
    """A head of a compact file."""
    file = SafeTensors.open(path)
    if file.metadata.get("format") != FORMAT:
        raise ModelFileError(
            f"{path}: its format is {file.metadata.get('format', 'not said')!r:.40}, expected {FORMAT!r}; a head in "
            f"the official layout is given as its folder"
        )
    config = parse(_json(file.metadata.get("config", ""), path), f"{path}, config")
    types = _json(file.metadata.get("types", ""), path)
    _check_names(file, config)
    matrices = {}
    for name, (outputs, inputs) in _matrices_of(file, config).items():
        label = types.get(name) if isinstance(types, dict) else None
        kind = next((kind for kind in BLOCKS if kind.name == label), None)
        if kind is None or inputs % BLOCKS[kind].elements:
            raise ModelFileError(f"{path}: tensor {name!r} of {inputs} inputs has type {label!r:.20}")
        row = inputs // BLOCKS[kind].elements * BLOCKS[kind].nbytes
        _check_shape(file, name, (outputs, row), ("U8",))
        matrices[name] = Weight(name, kind, outputs, inputs, file.array(name).reshape(-1))
    known = ("format", "config", "types")
    metadata = {key: value for key, value in file.metadata.items() if key not in known}
    return Head(config, matrices, _norms(file, config), _target_ids(file, config), metadata)


def write_compact(head: Head, path: Path) -> None:
    """Write a compact file; the head's metadata go into it."""
    tensors: dict[str, tuple[str, npt.NDArray[Any]]] = {
        name: ("U8", weight.raw.reshape(weight.outputs, -1)) for name, weight in head.matrices.items()
    }
    tensors |= {name: ("F32", values) for name, values in head.norms.items()}
    tensors[TARGET_IDS] = "I32", head.target_ids - np.arange(head.config.draft_vocabulary)
    types = {name: weight.type.name for name, weight in head.matrices.items()}
    document = head.config.document("float32")
    metadata = {**head.metadata, "format": FORMAT, "config": json.dumps(document), "types": json.dumps(types)}
    safetensors.write(path, tensors, metadata)


def _json(content: str | bytes, path: Path) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: no valid JSON: {error}") from error


def _matrices_of(file: SafeTensors, config: HeadConfig) -> dict[str, tuple[int, int]]:
    own = {EMBEDDING: (config.vocabulary, config.hidden)} if EMBEDDING in file.tensors else {}
    return config.matrices() | own


def _check_names(file: SafeTensors, config: HeadConfig) -> None:
    needed = {*config.matrices(), *NORMS}
    optional = {EMBEDDING, DRAFTABLE, TARGET_IDS}
    if config.draft_vocabulary < config.vocabulary:
        needed.add(TARGET_IDS)
    missing, unknown = sorted(needed - set(file.tensors)), sorted(set(file.tensors) - needed - optional)
    if missing or unknown:
        said = [f"{names[0]!r:.100} {verb}" + (f", as {verb[:-8]} {len(names) - 1} others" if len(names) > 1 else "")
                for names, verb in ((missing, "is missing"), (unknown, "has no place")) if names]  # fmt: skip
        raise ModelFileError(f"{file.path}: tensor {'; tensor '.join(said)} in an EAGLE-3 head")


def _check_shape(file: SafeTensors, name: str, shape: tuple[int, ...], dtypes: Collection[str]) -> None:
    tensor = file.tensors[name]
    if tensor.shape != shape or tensor.dtype not in dtypes:
        raise ModelFileError(
            f"{file.path}: tensor {name!r} is {tensor.dtype} {list(tensor.shape)}, expected {' or '.join(dtypes)} "
            f"{list(shape)}"
        )


def _norms(file: SafeTensors, config: HeadConfig) -> dict[str, FloatArray]:
    norms = {}
    for name in NORMS:
        _check_shape(file, name, (config.hidden,), _FLOATS)
        values = file.array(name)
        bfloat = file.tensors[name].dtype == "BF16"
        norms[name] = (values.astype(np.uint32) << 16).view(np.float32) if bfloat else values.astype(np.float32)
    return norms


def _target_ids(file: SafeTensors, config: HeadConfig) -> IntArray:
    """d2t holds what is to be added to a draft id; t2d which of the target's tokens have one."""
    count, vocabulary = config.draft_vocabulary, config.vocabulary
    ids = np.arange(count, dtype=np.int64)
    if TARGET_IDS in file.tensors:
        _check_shape(file, TARGET_IDS, (count,), ("I64", "I32"))
        ids = ids + file.array(TARGET_IDS)
    outside = np.flatnonzero((ids < 0) | (ids >= vocabulary))
    if len(outside):
        at = int(outside[0])
        raise ModelFileError(
            f"{file.path}: tensor 'd2t' makes draft id {at} token {ids[at]}, expected 0 to {vocabulary - 1}"
        )
    if len(falls := np.flatnonzero(np.diff(ids) <= 0)):
        at = int(falls[0]) + 1
        raise ModelFileError(
            f"{file.path}: tensor 'd2t' makes draft id {at} token {ids[at]}, after {ids[at - 1]}; expected an "
            "ascending order"
        )
    if DRAFTABLE in file.tensors:
        _check_shape(file, DRAFTABLE, (vocabulary,), ("BOOL",))
        expected = np.zeros(vocabulary, np.bool_)
        expected[ids] = True
        if len(wrong := np.flatnonzero(file.array(DRAFTABLE) != expected)):
            raise ModelFileError(
                f"{file.path}: tensors 't2d' and 'd2t' do not agree on token {wrong[0]}: only one of them names it"
            )
    return ids.astype(np.int32)
