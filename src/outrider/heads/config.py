"""The shape of an EAGLE-3 head: what its `config.json` says, checked, and the tensors that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from outrider.errors import ModelFileError, UnsupportedModelError

NORMS = (
    "midlayer.hidden_norm.weight",
    "midlayer.input_layernorm.weight",
    "midlayer.post_attention_layernorm.weight",
    "norm.weight",
)
EMBEDDING, FUSER, OUTPUT = "embed_tokens.weight", "fc.weight", "lm_head.weight"
TARGET_IDS, DRAFTABLE = "d2t", "t2d"

_FIXED: Mapping[str, tuple[object, ...]] = {
    "model_type": ("llama",),
    "num_hidden_layers": (1, None),
    "hidden_act": ("silu", None),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "bias": (False, None),
    "tie_word_embeddings": (False, None),
    "norm_before_residual": (False, None),
    "rope_scaling": (None,),
    # Where these name layers, vLLM reads their inputs and SGLang their outputs; only the common default is clear.
    "eagle_aux_hidden_state_layer_ids": (None,),
}
"""What this version can run; None: the field is absent or null."""


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Sizes of a head.

    hidden            of its layer; `target_hidden` of the target, three of whose hidden states it reads.
    context           positions that it was made for.
    vocabulary        of the target; `draft_vocabulary`: how many of those tokens it can propose.
    epsilon           of its norms; rope_base: of its rotary positions, in halves.
    """

    hidden: int
    target_hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    vocabulary: int
    draft_vocabulary: int
    epsilon: float
    rope_base: float

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Name and shape [outputs, inputs] of every matrix but the embedding, as SafeAILab/EAGLE's cnets.py has it."""
        wide, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            FUSER: (self.hidden, 3 * self.target_hidden),
            "midlayer.self_attn.q_proj.weight": (wide, 2 * self.hidden),
            "midlayer.self_attn.k_proj.weight": (keys, 2 * self.hidden),
            "midlayer.self_attn.v_proj.weight": (keys, 2 * self.hidden),
            "midlayer.self_attn.o_proj.weight": (self.hidden, wide),
            "midlayer.mlp.gate_proj.weight": (self.ffn, self.hidden),
            "midlayer.mlp.up_proj.weight": (self.ffn, self.hidden),
            "midlayer.mlp.down_proj.weight": (self.hidden, self.ffn),
            OUTPUT: (self.draft_vocabulary, self.hidden),
        }

    def document(self, dtype: str) -> dict[str, object]:
        """The `config.json` of the official layout; dtype: the name that PyTorch gives it, such as "bfloat16"."""
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "target_hidden_size": self.target_hidden,
            "intermediate_size": self.ffn,
            "num_hidden_layers": 1,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "attention_bias": False,
            "max_position_embeddings": self.context,
            "vocab_size": self.vocabulary,
            "draft_vocab_size": self.draft_vocabulary,
            "rms_norm_eps": self.epsilon,
            "rope_theta": self.rope_base,
            "rope_scaling": None,
            "tie_word_embeddings": False,
            "torch_dtype": dtype,
        }


def parse(document: object, source: str) -> HeadConfig:
    """The config of a decoded `config.json`; `source` is its name in errors.

    Raises ModelFileError for a field that is missing or impossible, UnsupportedModelError for what this version lacks.
    """
    if not isinstance(document, dict):
        raise ModelFileError(f"{source}: it is a {type(document).__name__}, expected an object")
    fields = dict(document)
    if isinstance(nested := fields.get("eagle_config"), dict):
        fields = {**nested, **fields}
    if isinstance(rope := fields.get("rope_parameters"), dict):  # as transformers 5 writes it
        if rope.get("rope_type", "default") != "default":
            raise UnsupportedModelError(f"{source}: rope_type is {rope['rope_type']!r}, this version supports default")
        fields.setdefault("rope_theta", rope.get("rope_theta"))
    for field, allowed in _FIXED.items():
        if (value := fields.get(field)) not in allowed:
            expected = " or ".join("nothing" if each is None else repr(each) for each in allowed)
            raise UnsupportedModelError(f"{source}: field {field!r} is {value!r:.60}, this version supports {expected}")

    def number(field: str, default: float | None, least: float, most: float, *, whole: bool) -> float:
        value = fields.get(field)
        value = default if value is None else value
        fits = type(value) is int or (type(value) is float and not whole and isfinite(value))
        if not fits or not least <= value <= most:  # type: ignore[operator]  # it is a number here
            kind = "a whole number" if whole else "a number"
            raise ModelFileError(f"{source}: field {field!r} is {value!r:.60}, expected {kind} from {least} to {most}")
        return value  # type: ignore[return-value]

    def size(field: str, default: int | None = None, most: int = 2**24) -> int:
        return int(number(field, default, 1, most, whole=True))

    hidden, heads, vocabulary = size("hidden_size"), size("num_attention_heads", most=2**12), size("vocab_size")
    config = HeadConfig(
        hidden=hidden,
        target_hidden=size("target_hidden_size", hidden),
        ffn=size("intermediate_size"),
        heads=heads,
        kv_heads=size("num_key_value_heads", heads),
        head_dim=size("head_dim", max(hidden // heads, 1)),
        context=size("max_position_embeddings", 2048),
        vocabulary=vocabulary,
        draft_vocabulary=size("draft_vocab_size", vocabulary, vocabulary),
        epsilon=number("rms_norm_eps", 1e-6, 0, 1, whole=False),
        rope_base=number("rope_theta", 10000.0, 1, 1e12, whole=False),
    )
    if config.heads % config.kv_heads:
        raise ModelFileError(
            f"{source}: field 'num_attention_heads' is {heads}, expected a multiple of {config.kv_heads} key heads"
        )
    if config.head_dim % 16:
        raise UnsupportedModelError(
            f"{source}: field 'head_dim' is {config.head_dim}, this version supports multiples of 16"
        )
    return config
