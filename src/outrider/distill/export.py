"""Students as files that others read: heads in the official EAGLE-3 layout, drafts as GGUF."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from outrider.distill.draft import Draft
from outrider.distill.head import Head
from outrider.distill.student import Student, neighbours
from outrider.distill.target import Target
from outrider.drafts import MODEL
from outrider.heads import Head as HeadWeights
from outrider.heads.checkpoint import write_official
from outrider.heads.config import NORMS
from outrider.types import FloatArray
from outrider.weights.tensor_types import TensorType
from outrider.weights.weight import Weight


def export(student: Student, target: Target, folder: Path) -> None:
    """Write the student's files into the folder; each is replaced as a whole."""
    if isinstance(student, Head):
        export_head(student, folder)
    elif isinstance(student, Draft):
        export_draft(student, target, folder / MODEL)


def export_head(head: Head, folder: Path) -> None:
    """`config.json` and `model.safetensors`, as SafeAILab/EAGLE writes and vLLM and SGLang read."""
    values = {name: _floats(p) for name, p in head.named_parameters()}
    matrices = {
        name: Weight(name, TensorType.F32, array.shape[0], array.shape[1], array.reshape(-1).view(np.uint8))
        for name, array in values.items()
        if name not in NORMS
    }
    norms = {name: values[name] for name in NORMS}
    write_official(
        HeadWeights(head.config, matrices, norms, head.target_ids.cpu().numpy().astype(np.int32), {}), folder
    )


def export_draft(draft: Draft, target: Target, path: Path) -> None:
    """A GGUF file with the target's tokenizer; matrices in 8 bits (Q8_0)."""
    shape = draft.shape
    new = path.with_suffix(".new")
    writer = gguf.GGUFWriter(new, "llama")
    writer.add_name(f"draft for {target.path.stem}")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_vocab_size(shape.vocabulary)
    _copy_tokenizer(target.path, writer)
    for name, values in _draft_tensors(draft):
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(new, path)


def _copy_tokenizer(path: Path, writer: gguf.GGUFWriter) -> None:
    for name, field in gguf.GGUFReader(path).fields.items():
        if name.startswith("tokenizer."):
            kind, *nested = field.types
            writer.add_key_value(name, field.contents(), kind, nested[0] if nested else None)


def _draft_tensors(draft: Draft) -> list[tuple[str, FloatArray]]:
    heads = draft.shape.heads
    tensors: list[tuple[str, Tensor]] = [
        ("token_embd.weight", draft.token_embd.weight),
        ("output_norm.weight", draft.output_norm.weight),
    ]
    for i, layer in enumerate(draft.layers):
        for name, p in layer.named_parameters():
            values = neighbours(p, heads) if name in ("attn_q.weight", "attn_k.weight") else p
            tensors.append((f"blk.{i}.{name.replace('mlp.', 'ffn_').replace('_proj', '')}", values))
    return [(name, _floats(tensor)) for name, tensor in tensors]


def _floats(p: Tensor) -> FloatArray:
    array: FloatArray = np.ascontiguousarray(p.detach().to("cpu", torch.float32).numpy())
    return array
