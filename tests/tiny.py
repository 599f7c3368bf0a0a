"""Small Llama models with random weights, as GGUF files on disk: what the tests run on, without any download.

They are written, and their float values read back, with the `gguf` package: an oracle that shares no code with ours.
"""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from outrider.weights import hub
from outrider.weights.gguf import TensorType

MERGES: tuple[tuple[bytes, bytes], ...] = (
    (b"\xa9", b"\xc3"),  # the end of one "é" and the start of the next
    (b"\x80", b"\xf0"),  # likewise in "😀😀"
    (b"\x9f", b"\x98"),  # the middle of that emoji
    (b"\x80\xf0", b"\x9f\x98"),
    (b"\x96", b"\xe7"),  # in "世界"
    (b"t", b"h"),
    (b"th", b"e"),
    (b" ", b"the"),
    (b"i", b"n"),
    (b"l", b"l"),
)
"""The merges of the tokenizer, first ones first; several straddle the ends of UTF-8 characters."""

CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

BYTE_TOKENS: tuple[bytes, ...] = (*(bytes([byte]) for byte in range(256)), *(left + right for left, right in MERGES))
"""The bytes of each ordinary token, by id: a single byte's id is its value; the ids of CONTROLS come next."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LOGIT_SPREAD = 3.0


def tiny_llama(
    path: Path,
    *,
    seed: int = 0,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    ffn: int = 96,
    vocab_size: int | None = None,
    padding: int = 0,
    context: int = 256,
    weight_type: TensorType = TensorType.F32,
    embedding_type: TensorType | None = None,
    tied: bool = False,
    rope_base: float = 10000.0,
    norm_eps: float = 1e-5,
) -> Path:
    """Write a Llama with random weights and a byte-level BPE tokenizer; return its path.

    hidden and ffn must be multiples of 32. vocab_size pads the vocabulary with unused tokens,
    `padding` its matrices alone, with rows that would often win. embedding_type is the type of token_embd and output (by
    default weight_type, that of all other matrices). Logits have a spread of a few units, and control and unused tokens
    stay far from the top, so a greedy text runs on until it is cut.
    As in every Llama GGUF, rotary embedding is meant to turn *neighbouring* pairs of the rows of attn_q and attn_k.
    """
    rng = np.random.default_rng(seed)
    head = hidden // heads
    tokens = [_as_text(token) for token in BYTE_TOKENS] + list(CONTROLS)
    unused = (vocab_size or len(tokens)) - len(tokens)
    assert unused >= 0, f"the vocabulary has at least {len(tokens)} tokens"
    types = [gguf.TokenType.NORMAL] * len(BYTE_TOKENS) + [gguf.TokenType.CONTROL] * len(CONTROLS)
    tokens += [f"[UNUSED{index}]" for index in range(unused)]
    types += [gguf.TokenType.UNUSED] * unused

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"tiny-{seed}")
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(rope_base)
    writer.add_layer_norm_rms_eps(norm_eps)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([f"{_as_text(left)} {_as_text(right)}" for left, right in MERGES])
    writer.add_bos_token_id(tokens.index("<|im_start|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)

    def matrix(name: str, rows: int, columns: int, gain: float, kind: TensorType = weight_type) -> None:
        values = rng.standard_normal((rows, columns), np.float32) * np.float32(gain / columns**0.5)
        if name == ("token_embd" if tied else "output"):
            values[len(BYTE_TOKENS) :] *= np.float32(0.05)
        if padding and name in ("token_embd", "output"):
            more = np.random.default_rng(99).standard_normal((padding, columns), np.float32)
            values = np.concatenate([values, more * np.float32(2 * gain / columns**0.5)])
        number = gguf.GGMLQuantizationType(kind)
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, number), raw_dtype=number)

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", 1 + np.float32(0.1) * rng.standard_normal(hidden, np.float32))

    embedding_type = weight_type if embedding_type is None else embedding_type
    matrix("token_embd", len(tokens), hidden, LOGIT_SPREAD, embedding_type)
    for layer in range(layers):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm")
        matrix(f"{block}.attn_q", heads * head, hidden, 1.5)
        matrix(f"{block}.attn_k", kv_heads * head, hidden, 1.5)
        matrix(f"{block}.attn_v", kv_heads * head, hidden, 1.5)
        matrix(f"{block}.attn_output", hidden, heads * head, 1.5)
        norm(f"{block}.ffn_norm")
        matrix(f"{block}.ffn_gate", ffn, hidden, 1.5)
        matrix(f"{block}.ffn_up", ffn, hidden, 1.5)
        matrix(f"{block}.ffn_down", hidden, ffn, 1.5)
    norm("output_norm")
    if not tied:
        matrix("output", len(tokens), hidden, LOGIT_SPREAD, embedding_type)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def float_weights(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """The tensors of a GGUF file as float32 arrays, rows first, by name, as the `gguf` package sees them."""
    return {
        tensor.name: np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)
        for tensor in gguf.GGUFReader(path).tensors
    }


def default_model() -> Path | None:
    """The file of the default model, if this machine has it: OUTRIDER_TEST_MODEL, or the one in the cache."""
    path = Path(os.environ.get("OUTRIDER_TEST_MODEL") or hub.ALIASES["smollm2"].cached)
    return path if path.is_file() else None


def _alphabet() -> dict[int, str]:
    """GPT-2's letters for bytes: printable bytes stand for themselves, the others are numbered from U+0100 on."""
    printable = set(chain(range(ord("!"), ord("~") + 1), range(ord("¡"), ord("¬") + 1), range(ord("®"), ord("ÿ") + 1)))
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


_ALPHABET = _alphabet()


def _as_text(token: bytes) -> str:
    return "".join(_ALPHABET[byte] for byte in token)
