"""The model that is distilled: its sizes and weights, and its forward pass over texts that are known already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import file_digest
from pathlib import Path

from outrider.cache import KVCache, KVSequence
from outrider.errors import UnsupportedModelError
from outrider.kernels.native import NativeModel
from outrider.models import record
from outrider.types import EMPTY, FloatArray, Output, Proposal
from outrider.weights.dequantise import dequantise
from outrider.weights.gguf import GGUF

_PIECE = 128  # rows of a pass: their logits take 4 bytes for each token of the vocabulary


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama model, as its file says."""

    hidden: int
    layers: int
    ffn: int
    heads: int
    kv_heads: int
    context: int
    vocabulary: int
    epsilon: float
    rope_base: float

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.hidden // self.heads


class Target:
    """A model file."""

    def __init__(self, path: Path) -> None:
        """Raises UnsupportedModelError for a model that is no Llama."""
        self.path = path
        self.gguf = gguf = GGUF.open(path)
        if (architecture := gguf.text("general.architecture")) != "llama":
            raise UnsupportedModelError(f"{path}: its architecture is {architecture!r}, only 'llama' can be distilled")
        self.shape = Shape(
            hidden=gguf.integer("llama.embedding_length"),
            layers=gguf.integer("llama.block_count"),
            ffn=gguf.integer("llama.feed_forward_length"),
            heads=gguf.integer("llama.attention.head_count"),
            kv_heads=gguf.integer("llama.attention.head_count_kv"),
            context=gguf.integer("llama.context_length"),
            vocabulary=gguf.tensor("token_embd.weight").shape[0],
            epsilon=gguf.number("llama.attention.layer_norm_rms_epsilon"),
            rope_base=gguf.number("llama.rope.freq_base", default=10000.0),
        )

    @cached_property
    def sha256(self) -> str:
        """Of the whole file, in hexadecimal."""
        with self.path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()

    def tensor(self, name: str) -> FloatArray:
        """A tensor in float32, rows first."""
        info = self.gguf.tensor(name)
        return dequantise(self.gguf.data(name), info.type, info.shape)

    @cached_property
    def embedding(self) -> FloatArray:
        """The input embedding, [vocabulary, hidden]."""
        return self.tensor("token_embd.weight")

    @staticmethod
    def layer(index: int) -> tuple[str, ...]:
        """The names of the tensors of a layer."""
        parts = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
        return tuple(f"blk.{index}.{part}.weight" for part in parts)

    def output_rows(self) -> FloatArray:
        """What makes logits of hidden states, [vocabulary, hidden]."""
        return self.tensor("output.weight") if "output.weight" in self.gguf.tensors else self.embedding


class Reader:
    """Reads known texts with the target, on the native kernels: one at a time, in pieces."""

    def __init__(self, target: Target, taps: Sequence[int], context: int) -> None:
        recorded = record(target.gguf, taps)
        self._model = NativeModel(recorded.program, context_length=context, kv_shape=recorded.kv_shape)
        self._cache = KVCache(recorded.kv_shape, KVCache.blocks_for(context))

    def read(self, tokens: Sequence[int], answers: Sequence[tuple[int, int]]) -> Iterator[tuple[int, Output]]:
        """The passes over a text: first position and output of each, valid until the next.

        Logits are those of the positions before each token of the answers, [start, end) each.
        """
        sequence = KVSequence()
        try:
            for begin, end, wanted in _pieces(len(tokens), answers):
                head = begin + 1 if wanted else end
                proposal = Proposal.chain(tokens[head:end], "") if head < end else EMPTY
                stretch = _Stretch(sequence, tokens[begin:head], wanted)
                yield begin, self._model.forward(self._cache.reserve([stretch], [proposal]), self._cache)
                self._cache.commit(sequence, head, range(end - head))
        finally:
            self._cache.release(sequence)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """What `KVCache.reserve` wants to know. Tokens whose logits are wanted are given as a proposal."""

    sequence: KVSequence
    tokens: Sequence[int]
    wanted: bool


def _pieces(length: int, answers: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, bool]]:
    """Begin, end, and whether logits are wanted, of each pass over the positions 0 .. length - 2."""
    at = 0
    for start, end in [*((start - 1, end - 1) for start, end in answers), (length - 1, length - 1)]:
        for first, last, wanted in ((at, start, False), (start, end, True)):
            for begin in range(first, last, _PIECE):
                yield begin, min(begin + _PIECE, last), wanted
        at = end
