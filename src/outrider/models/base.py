"""What the loop needs of a target: one forward pass over rows, and the shape of its KV cache.

Our own models are recorded programs; any other runtime takes part by implementing `CausalLM`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from outrider.errors import RequestError
from outrider.types import Output, Rows

if TYPE_CHECKING:
    from outrider.cache import KVCache
    from outrider.program import Program
    from outrider.weights.gguf import GGUF
    from outrider.weights.weight import Weight


@dataclass(frozen=True, slots=True)
class KVShape:
    """What a model keeps per position: in each layer, `heads` keys and as many values of `head_dim` numbers (even)."""

    layers: int
    heads: int
    head_dim: int


class CausalLM(Protocol):
    """A model that predicts the next token of each row."""

    @property
    def vocabulary_size(self) -> int:
        """Number of logits per row: no id at or past the tokenizer's own vocabulary has one; see `known_rows`."""
        ...

    @property
    def context_length(self) -> int:
        """The most tokens of a sequence, prompt and output together."""
        ...

    @property
    def kv_shape(self) -> KVShape:
        """What its KV cache holds per position."""
        ...

    def forward(self, rows: Rows, cache: KVCache) -> Output:
        """Write the keys and values of every row at its slot, then compute the logits of the wanted rows.

        A row's logits depend on its own path alone, bit for bit: not on the other rows of the pass, nor on which
        slots hold the path. Nothing is written at any other slot. The output is valid until the next call.
        """
        ...


@dataclass(frozen=True, slots=True)
class Recorded:
    """A model definition's result: the program, and what the loop and a drafter must know of it.

    embedding  [rows of the file, hidden], which a draft head may share.
    """

    program: Program
    context_length: int
    kv_shape: KVShape
    embedding: Weight


def known_rows(gguf: GGUF, head: Weight) -> Weight:
    """The rows of an output head whose ids the file's tokenizer has: some files pad the vocabulary, and a row too many
    could win."""
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    return head.rows(len(tokens)) if isinstance(tokens, tuple) and 0 < len(tokens) < head.outputs else head


def check_taps(taps: Collection[int], layers: int) -> None:
    """Raises RequestError for a tap that is no layer of the model."""
    for tap in taps:
        if not 0 <= tap < layers:
            raise RequestError(f"tap {tap} is not possible; the model has layers 0 to {layers - 1}")
