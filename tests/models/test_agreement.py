"""A whole Llama: the native kernels against the NumPy reference, and both against Hugging Face's implementation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.kernels.reference import LARGEST_VALUE, encode, largest_code
from outrider.models.base import CausalLM
from outrider.types import FloatArray
from outrider.weights.gguf import GGUF, TensorType
from tests.kernels.workbench import KERNELS, QUANTISED, tokens_of
from tests.models.loading import logits, native, reference, with_tensor
from tests.tiny import float_weights, tiny_llama

VOCABULARY = 269
TEXT = tokens_of(0, 40, VOCABULARY)

by_kernels = pytest.mark.parametrize("kernels", KERNELS)


def assert_close(actual: FloatArray, expected: FloatArray, *, most: float, usual: float, least: float = np.inf) -> None:
    """Bounds on the errors of the worst row, of the median row and of the best row, in units of the largest logit."""
    errors = np.abs(actual - expected).max(axis=1) / np.abs(expected).max()
    assert errors.max() < most
    assert np.median(errors) < usual
    assert errors.min() < least


def assert_same_model(actual: FloatArray, expected: FloatArray) -> None:
    """Sums in another order, and attention's queries and weights not rounded."""
    assert_close(actual, expected, most=1e-3, usual=5e-4)


@pytest.mark.parametrize("kind", [TensorType.F32, TensorType.F16, TensorType.BF16])
@by_kernels
def test_with_float_weights_native_and_reference_agree(kernels: str, kind: TensorType, tmp_path: Path) -> None:
    """Only the order of sums differs, which now and then rounds a key, a value or a weight to the next code."""
    path = tiny_llama(tmp_path / "tiny.gguf", weight_type=kind)
    assert_close(logits(native(path, kernels), TEXT), logits(reference(path), TEXT), most=5e-4, usual=1e-4)


@pytest.mark.parametrize("kind", QUANTISED)
@by_kernels
def test_with_quantised_weights_native_and_reference_agree(kernels: str, kind: TensorType, tmp_path: Path) -> None:
    """Operations agree within 1e-5, but then a number at the edge of two codes may fall to either side of it.

    That moves rows by as much as a rounding error, and through attention the rows after them; where none has moved, rows
    agree as their operations do. Without rounding, they differ more, every one of them.
    """
    path = tiny_llama(tmp_path / "tiny.gguf", weight_type=kind)
    actual = logits(native(path, kernels), TEXT)
    assert_close(actual, logits(reference(path), TEXT), most=2e-2, usual=1e-2, least=1e-5)
    exact = logits(reference(path, quantise_activations=False), TEXT)
    assert_close(actual, exact, most=1e-1, usual=4e-2)
    for bounds in ({"most": 2e-2, "usual": np.inf}, {"most": np.inf, "usual": 1e-2}):  # negative controls
        with pytest.raises(AssertionError):
            assert_close(actual, exact, **bounds)
    with pytest.raises(AssertionError):
        assert_close(actual, exact, most=np.inf, usual=np.inf, least=1e-5)


def test_weights_of_several_types_may_meet_in_one_model(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf", weight_type=TensorType.Q4_1, embedding_type=TensorType.F16)
    assert_close(logits(native(path), TEXT), logits(reference(path), TEXT), most=2e-2, usual=1e-2, least=1e-5)


SHAPES: dict[str, dict[str, Any]] = {
    "two queries on each key": {},
    "as many keys as queries": {"kv_heads": 4},
    "three queries on each key": {"heads": 6, "kv_heads": 2, "hidden": 96},
    "one key for all": {"kv_heads": 1, "hidden": 128},
    "tied embeddings": {"tied": True},
    "another base": {"rope_base": 1e6},
    "a large epsilon": {"norm_eps": 0.1},
    "one layer": {"layers": 1},
}
RUNTIMES: dict[str, Callable[[Path | GGUF], CausalLM]] = {
    **{kernels: lambda file, kernels=kernels: native(file, kernels) for kernels in KERNELS},
    "reference": reference,
}
by_runtime = pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=RUNTIMES)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@by_runtime
def test_agrees_with_hugging_face(runtime: Callable[..., CausalLM], shape: dict[str, Any], tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf", **shape)
    actual = logits(runtime(path), TEXT)
    assert_same_model(actual, HuggingFace(path).logits(TEXT))
    for fault in ({"rms_norm_eps": 2e-2}, {"base": 9000.0}):
        with pytest.raises(AssertionError):  # negative control
            assert_same_model(actual, HuggingFace(path, **fault).logits(TEXT))


@by_runtime
def test_scaled_frequencies_agree_with_hugging_face(runtime: Callable[..., CausalLM], tmp_path: Path) -> None:
    """Llama 3.1's scaling: low frequencies are divided by 8, high ones kept, those between by something between."""
    path = tiny_llama(tmp_path / "tiny.gguf", hidden=128, rope_base=500.0)
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    oracle = HuggingFace(path, rope_type="llama3", **scaling)
    factors = (500.0 ** (-np.arange(0, 32, 2) / 32) / oracle.frequencies).astype(np.float32)
    assert {1, 8} < set(factors.round(5).tolist()), "some are kept, some divided by 8, some between"
    actual = logits(runtime(with_tensor(GGUF.open(path), "rope_freqs.weight", factors)), TEXT)
    assert_same_model(actual, oracle.logits(TEXT))
    with pytest.raises(AssertionError):  # negative control
        assert_same_model(actual, HuggingFace(path).logits(TEXT))


class HuggingFace:
    """transformers' LlamaForCausalLM in float32 on a file's weights; its cache rounds as ours does."""

    def __init__(
        self, path: Path, *, rms_norm_eps: float | None = None, base: float | None = None, **rope: float | str
    ) -> None:
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers", minversion="5.0")
        torch.set_num_threads(1)  # such small matrices are not worth waking a second
        gguf = GGUF.open(path)
        weights = float_weights(path)
        vocabulary, hidden = weights["token_embd.weight"].shape
        heads, kv_heads = (gguf.integer(f"llama.attention.head_count{end}") for end in ("", "_kv"))
        epsilon = rms_norm_eps or gguf.number("llama.attention.layer_norm_rms_epsilon")
        config = transformers.LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=gguf.integer("llama.feed_forward_length"),
            num_hidden_layers=gguf.integer("llama.block_count"),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            max_position_embeddings=256,
            rms_norm_eps=epsilon,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": base or gguf.number("llama.rope.freq_base"),
                **rope,
            },
            tie_word_embeddings="output.weight" not in weights,
        )
        state = {}
        for name, values in weights.items():
            values = halves(values, heads) if "attn_q" in name else values
            values = halves(values, kv_heads) if "attn_k" in name else values
            state[hugging_face_name(name)] = torch.from_numpy(np.ascontiguousarray(values))
        if config.tie_word_embeddings:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        self._model = transformers.LlamaForCausalLM(config).eval()
        self._model.load_state_dict(state)
        self._torch = torch
        self._cache_class = transformers.DynamicCache

    @property
    def frequencies(self) -> FloatArray:
        return self._model.model.rotary_emb.inv_freq.numpy()

    def logits(self, tokens: list[int]) -> FloatArray:
        torch = self._torch

        def rounded(x: Any, largest: int) -> Any:
            codes, scales = encode(x.numpy(), largest)
            return torch.from_numpy(codes * scales[..., None])

        class RoundedCache(self._cache_class):
            def update(self, keys: Any, values: Any, *rest: Any, **options: Any) -> Any:
                keys, values = rounded(keys, largest_code(keys.shape[-1])), rounded(values, LARGEST_VALUE)
                return super().update(keys, values, *rest, **options)

        parameters = inspect.signature(self._model.forward).parameters
        cache = {"cache" if "cache" in parameters else "past_key_values": RoundedCache()}
        with self._torch.no_grad():
            return self._model(self._torch.tensor([tokens]), use_cache=True, **cache).logits[0].numpy()


def halves(matrix: FloatArray, heads: int) -> FloatArray:
    """Rows of queries or keys from GGUF's order of rotated pairs (neighbours) to Hugging Face's (half a head apart)."""
    return matrix.reshape(heads, -1, 2, matrix.shape[1]).swapaxes(1, 2).reshape(matrix.shape)


NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hugging_face_name(name: str) -> str:
    *block, tensor, _ = name.split(".")
    layer = f"model.layers.{block[1]}." if block else ""
    return f"{layer}{NAMES[tensor]}.weight"
