"""The Llama family: Llama 2 and 3, SmolLM2, Mistral and what else calls itself "llama" in a GGUF file.

Pre-norm decoder layers, grouped-query attention with rotary positions (interleaved pairs, as GGUF stores this family),
SwiGLU feed-forward layers. Touvron et al. 2023 (arXiv 2302.13971); scaled frequencies: Llama 3.1.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.base import KVShape, Recorded, check_taps, known_rows
from outrider.program import Program
from outrider.types import FloatArray
from outrider.weights.gguf import GGUF
from outrider.weights.tensors import Tensors


def record(gguf: GGUF, taps: Collection[int] = ()) -> Recorded:
    """The program of a Llama model file. Raises ModelFileError where fields or tensors are missing or do not fit.

    taps  see `outrider.models.record`.
    """
    hidden = gguf.integer("llama.embedding_length", minimum=1, maximum=2**20)
    layers = gguf.integer("llama.block_count", minimum=1, maximum=2**12)
    ffn = gguf.integer("llama.feed_forward_length", minimum=1, maximum=2**20)
    heads = gguf.integer("llama.attention.head_count", minimum=1, maximum=2**12)
    kv_heads = gguf.integer("llama.attention.head_count_kv", minimum=1, maximum=heads, default=heads)
    head_dim = gguf.integer("llama.attention.key_length", minimum=1, maximum=2**12, default=hidden // heads)
    rotary = gguf.integer("llama.rope.dimension_count", minimum=2, maximum=head_dim, default=head_dim)
    context = gguf.integer("llama.context_length", minimum=1, maximum=2**24)
    epsilon = gguf.number("llama.attention.layer_norm_rms_epsilon", minimum=0, maximum=1)
    base = gguf.number("llama.rope.freq_base", minimum=1, default=10000.0)
    _refuse_unsupported(gguf, heads, kv_heads, head_dim, rotary)
    check_taps(taps, layers)

    tensors = Tensors(gguf)
    vocabulary = tensors.outputs("token_embd.weight", inputs=hidden)
    embedding = tensors.matrix("token_embd.weight", vocabulary, hidden)

    program = Program()
    x = program.embed(embedding)
    angles = program.angles(frequencies(base, rotary, _frequency_factors(gguf, tensors, rotary // 2)))
    for i in range(layers):
        block = f"blk.{i}."
        if i in taps:
            program.output(f"tap.{i}", x)
        h = program.rms_norm(x, tensors.vector(block + "attn_norm.weight", hidden), epsilon)
        qkv = program.linear(
            h,
            tensors.matrix(block + "attn_q.weight", heads * head_dim, hidden),
            tensors.matrix(block + "attn_k.weight", kv_heads * head_dim, hidden),
            tensors.matrix(block + "attn_v.weight", kv_heads * head_dim, hidden),
        )
        qk = program.rope(qkv, angles, heads=heads + kv_heads, head_dim=head_dim, interleaved=True)
        attended = program.attention(
            qk, qkv, value_column=qk.width, layer=i, heads=heads, kv_heads=kv_heads, head_dim=head_dim
        )
        output = tensors.matrix(block + "attn_output.weight", hidden, heads * head_dim)
        x = program.linear(attended, output, residual=x)
        h = program.rms_norm(x, tensors.vector(block + "ffn_norm.weight", hidden), epsilon)
        gate_up = program.linear(
            h,
            tensors.matrix(block + "ffn_gate.weight", ffn, hidden),
            tensors.matrix(block + "ffn_up.weight", ffn, hidden),
        )
        down = tensors.matrix(block + "ffn_down.weight", hidden, ffn)
        x = program.linear(program.swiglu(gate_up), down, residual=x)
    x = program.rms_norm(program.select(x), tensors.vector("output_norm.weight", hidden), epsilon)
    head = tensors.matrix("output.weight", vocabulary, hidden) if "output.weight" in gguf.tensors else embedding
    program.output("logits", program.linear(x, known_rows(gguf, head)))
    tensors.refuse_unread()
    return Recorded(program, context, KVShape(layers, kv_heads, head_dim), embedding)


def frequencies(base: float, rotary: int, factors: FloatArray | None) -> list[float]:
    """Radians per position of each rotated pair: base^(-2i / rotary), divided by the file's factors if it has any."""
    plain = [base ** (-2 * i / rotary) for i in range(rotary // 2)]
    return plain if factors is None else [f / float(c) for f, c in zip(plain, factors, strict=True)]


def _refuse_unsupported(gguf: GGUF, heads: int, kv_heads: int, head_dim: int, rotary: int) -> None:
    """What a file may legally say that this version would compute wrongly."""
    checks: list[tuple[str, object, bool, str]] = [
        ("llama.attention.head_count", heads, heads % kv_heads == 0, f"a multiple of head_count_kv, {kv_heads}"),
        ("llama.attention.key_length", head_dim, head_dim % 16 == 0, "a multiple of 16"),
        ("llama.rope.dimension_count", rotary, rotary % 2 == 0, "an even number"),
    ]
    value_length = gguf.integer("llama.attention.value_length", default=head_dim)
    checks.append(("llama.attention.value_length", value_length, value_length == head_dim, f"{head_dim}"))
    experts = gguf.integer("llama.expert_count", default=0)
    checks.append(("llama.expert_count", experts, experts == 0, "0 (no mixture of experts)"))
    scaling = gguf.text("llama.rope.scaling.type", default="linear")
    if scaling != "none":
        checks.append(("llama.rope.scaling.type", scaling, scaling == "linear", "none or linear"))
        for field in ("llama.rope.scaling.factor", "llama.rope.scale_linear"):
            factor = gguf.number(field, default=1.0)  # 0 stands for none in llama.cpp
            checks.append((field, factor, factor in (0, 1), "1 (scaling only by the tensor rope_freqs.weight)"))
    for field, value, fits, expected in checks:
        if not fits:
            raise UnsupportedModelError(f"{gguf.path}: field {field!r} is {value}, this version supports {expected}")


def _frequency_factors(gguf: GGUF, tensors: Tensors, count: int) -> FloatArray | None:
    """What each frequency is divided by, if the file says so (Llama 3.1)."""
    factors = tensors.optional_vector("rope_freqs.weight", count)
    if factors is not None:
        wrong = factors[~((factors > 0) & np.isfinite(factors))]
        if len(wrong):
            raise ModelFileError(f"{gguf.path}: tensor 'rope_freqs.weight' has {wrong[0]}, expected positive numbers")
    return factors
