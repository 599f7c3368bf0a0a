"""An EAGLE-3 head ready to run: two recorded programs beside the target's, on its threads and with its embedding.

    entry i of the head's KV cache:  hidden state of position i, and token i + 1  ->  logits of token i + 2

The hidden state is `fuse(taps of position i)` where the target has computed that position, and what the head itself
gave for entry i - 1 where it has not (Li et al. 2025, arXiv 2503.01840, section 3.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from outrider.cache import KVCache
from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.heads.checkpoint import Head
from outrider.heads.config import EMBEDDING, FUSER, OUTPUT
from outrider.kernels.native import NativeProgram
from outrider.models.base import KVShape
from outrider.models.llama import frequencies
from outrider.program import Program
from outrider.types import FloatArray, IntArray, Rows
from outrider.weights.weight import Weight


def tap_layers(layers: int) -> tuple[int, int, int]:
    """The layers of a target whose inputs a head reads, low to high as they lie in fc.weight: 2, n // 2, n - 3.

    So say SafeAILab/EAGLE (eagle/model/modeling_llama_kv.py, LlamaModel.forward), vLLM (the defaults of
    get_eagle3_aux_hidden_state_layers) and SGLang (set_eagle3_layers_to_capture).
    """
    if layers < 7:  # with fewer these are not three
        raise UnsupportedModelError(f"the target has {layers} layers, an EAGLE-3 head reads three of at least 7")
    return 2, layers // 2, layers - 3


class Runner(Protocol):
    """A runtime of a program: `NativeProgram`, or its reference."""

    def run(self, rows: Rows, cache: KVCache, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """One pass; the outputs by name."""
        ...

    def draft(self, rows: Rows, cache: KVCache, ids: IntArray) -> list[tuple[list[int], list[float]]]:
        """Greedy chains; see `NativeProgram.draft`."""
        ...


class DraftHead:
    """A head and what runs it. `fuser` and `layer` run the programs of `record_fuser` and `record_layer`."""

    def __init__(self, head: Head, fuser: Runner, layer: Runner) -> None:
        self.config = head.config
        self.target_ids = head.target_ids
        self.kv_shape = KVShape(1, head.config.kv_heads, head.config.head_dim)
        self._fuser = fuser
        self._layer = layer

    @classmethod
    def beside(cls, target: NativeProgram, embedding: Weight, head: Head, vocabulary: int | None = None) -> DraftHead:
        """The head on the native kernels of a target with that embedding. Raises ModelFileError if they do not fit.

        vocabulary  logits of the target; None: as many as the embedding has rows.
        """
        check_fits(head, embedding)
        head = head.within(vocabulary or embedding.outputs)
        fuser = NativeProgram(record_fuser(head), beside=target)
        return cls(head, fuser, NativeProgram(record_layer(head, embedding), beside=target))

    def fuse(self, rows: Rows, cache: KVCache, taps: FloatArray) -> FloatArray:
        """The hidden states of rows with the target's taps, [rows, 3 * target hidden]; valid until the next call."""
        return self._fuser.run(rows, cache, {"taps": taps})["hidden"]

    def forward(self, rows: Rows, cache: KVCache, hidden: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Stores the rows' keys and values; of the wanted rows, logits over the draft vocabulary and hidden states.

        hidden  [rows, hidden]. What comes back is valid until the next call, and may be its `hidden`.
        """
        outputs = self._layer.run(rows, cache, {"hidden": hidden})
        return outputs["logits"], outputs["hidden"]

    def draft(self, rows: Rows, cache: KVCache) -> list[tuple[list[int], list[float]]]:
        """A greedy chain from each wanted row of the last pass on: the target's ids, and the head's probabilities.

        rows  laid out for the tokens to come; see `NativeProgram.draft`.
        """
        return self._layer.draft(rows, cache, self.target_ids)


def check_fits(head: Head, embedding: Weight) -> None:
    """Raises ModelFileError unless the head was made for a target of this embedding's shape."""
    config = head.config
    pairs = (
        ("vocab_size", config.vocabulary, embedding.outputs),
        ("target_hidden_size", config.target_hidden, embedding.inputs),
    )
    for field, value, expected in pairs:
        if value != expected:
            raise ModelFileError(
                f"the draft head's {field} is {value}, the target's is {expected}: it is another model's"
            )
    if EMBEDDING not in head.matrices and config.hidden != embedding.inputs:
        raise ModelFileError(
            f"the draft head has no {EMBEDDING!r} and a hidden_size of {config.hidden}; the target's embedding has "
            f"{embedding.inputs}"
        )


def record_fuser(head: Head) -> Program:
    """From three hidden states of the target, side by side, to one."""
    program = Program()
    taps = program.input("taps", 3 * head.config.target_hidden)
    program.output("hidden", program.linear(taps, head.matrices[FUSER]))
    return program


def record_layer(head: Head, embedding: Weight) -> Program:
    """One decoder layer over the concatenation of normalised embedding and hidden state, and the draft logits.

    The concatenation is spelt as a sum: W [e, h] = W_e e + W_h h.
    """
    config, matrices, norms = head.config, head.matrices, head.norms
    hidden, epsilon = config.hidden, config.epsilon

    def projections(begin: int, end: int) -> Sequence[Weight]:
        names = (f"midlayer.self_attn.{part}_proj.weight" for part in "qkv")
        return [matrices[name].columns(begin, end) for name in names]

    program = Program()
    x = program.input("hidden", hidden)
    e = program.embed(matrices.get(EMBEDDING, embedding))
    e = program.rms_norm(e, norms["midlayer.input_layernorm.weight"], epsilon)
    h = program.rms_norm(x, norms["midlayer.hidden_norm.weight"], epsilon)
    qkv = program.linear(e, *projections(0, hidden))
    qkv = program.linear(h, *projections(hidden, 2 * hidden), residual=qkv)
    angles = program.angles(frequencies(config.rope_base, config.head_dim, None))
    heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
    qk = program.rope(qkv, angles, heads=heads + kv_heads, head_dim=head_dim, interleaved=False)
    attended = program.attention(
        qk, qkv, value_column=qk.width, layer=0, heads=heads, kv_heads=kv_heads, head_dim=head_dim
    )
    # Nobody reads more of the other rows than their keys and values.
    attended, x = program.select(attended), program.select(x)
    x = program.linear(attended, matrices["midlayer.self_attn.o_proj.weight"], residual=x)
    h = program.rms_norm(x, norms["midlayer.post_attention_layernorm.weight"], epsilon)
    gate_up = program.linear(h, matrices["midlayer.mlp.gate_proj.weight"], matrices["midlayer.mlp.up_proj.weight"])
    x = program.linear(program.swiglu(gate_up), matrices["midlayer.mlp.down_proj.weight"], residual=x)
    program.output("hidden", x)
    x = program.rms_norm(x, norms["norm.weight"], epsilon)
    program.output("logits", program.linear(x, matrices[OUTPUT]))
    return program
