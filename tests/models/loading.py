"""Model files, as they are or with something changed, as models of either runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from outrider.cache import KVCache, KVSequence
from outrider.kernels.native import NativeModel
from outrider.kernels.reference import ReferenceModel
from outrider.models import record
from outrider.models.base import CausalLM
from outrider.types import FloatArray
from outrider.weights.gguf import GGUF, MetadataValue, TensorInfo, TensorType
from tests.kernels.workbench import read


def native(file: Path | GGUF, kernels: str | None = None, threads: int = 1) -> NativeModel:
    model = record(opened(file))
    return NativeModel(
        model.program, context_length=model.context_length, kv_shape=model.kv_shape, threads=threads, kernels=kernels
    )


def reference(file: Path | GGUF, *, quantise_activations: bool = True) -> ReferenceModel:
    model = record(opened(file))
    return ReferenceModel(
        model.program,
        context_length=model.context_length,
        kv_shape=model.kv_shape,
        quantise_activations=quantise_activations,
    )


def opened(file: Path | GGUF) -> GGUF:
    return file if isinstance(file, GGUF) else GGUF.open(file)


def logits(model: CausalLM, tokens: Sequence[int], chunk: int = 10**9) -> FloatArray:
    """The logits after every token of a text, computed `chunk` rows at a time."""
    cache = KVCache(model.kv_shape, KVCache.blocks_for(len(tokens)))
    return read(model, cache, KVSequence(), tokens, chunk)


def with_field(gguf: GGUF, field: str, value: MetadataValue | None) -> GGUF:
    """The file with a metadata field set, or removed if the value is None."""
    fields: Mapping[str, MetadataValue] = {key: old for key, old in gguf.metadata.items() if key != field}
    return replace(gguf, metadata=MappingProxyType({**fields, **({} if value is None else {field: value})}))


def with_tensor(gguf: GGUF, name: str, values: FloatArray | None) -> GGUF:
    """The file with a float32 tensor added or replaced, or removed if there are no values."""
    tensors = {key: old for key, old in gguf.tensors.items() if key != name}
    if values is None:
        return replace(gguf, tensors=MappingProxyType(tensors))
    content = bytes(gguf._bytes)
    tensors[name] = TensorInfo(name, values.shape, TensorType.F32, len(content), values.nbytes)
    return replace(gguf, tensors=MappingProxyType(tensors), _bytes=content + values.tobytes())
