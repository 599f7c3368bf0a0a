"""A Llama file that this version cannot compute rightly is refused, by an error that names file, field or tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from outrider.errors import ModelError, ModelFileError, UnsupportedModelError
from outrider.models import record
from outrider.models.base import KVShape
from outrider.models.llama import frequencies
from outrider.weights.gguf import GGUF, MetadataValue
from tests.kernels.workbench import assert_same_bits, random, tokens_of
from tests.models.loading import logits, native, with_field, with_tensor
from tests.tiny import tiny_llama


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> GGUF:
    return GGUF.open(tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf"))


def refusal(gguf: GGUF, error: type[ModelError], *words: str) -> None:
    """Recording the file raises that very class, and the message has the file's path and all the words."""
    with pytest.raises(error) as caught:
        record(gguf)
    assert caught.type is error
    for word in (str(gguf.path), *words):
        assert word in str(caught.value)


def test_a_sound_file_is_recorded(gguf: GGUF) -> None:
    model = record(gguf)
    assert model.context_length == 256
    assert model.kv_shape == KVShape(layers=2, heads=2, head_dim=16)
    assert model.program.outputs["logits"].width == 269


FIELDS = (
    "llama.embedding_length",
    "llama.block_count",
    "llama.feed_forward_length",
    "llama.attention.head_count",
    "llama.context_length",
    "llama.attention.layer_norm_rms_epsilon",
)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [None, 0, -1, 2**40, "4", (4, 4), True, float("nan")])
def test_an_impossible_field_is_refused(gguf: GGUF, field: str, value: MetadataValue | None) -> None:
    if field.endswith("epsilon") and value == 0 and value is not False:
        return  # possible
    refusal(with_field(gguf, field, value), ModelFileError, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("llama.attention.head_count_kv", 0),
        ("llama.attention.head_count_kv", 8),
        ("llama.attention.key_length", 0),
        ("llama.rope.dimension_count", 18),
        ("llama.rope.dimension_count", 0),
        ("llama.rope.freq_base", 0.0),
        ("llama.rope.freq_base", float("inf")),
        ("llama.attention.value_length", "16"),
        ("llama.expert_count", "none"),
        ("llama.rope.scaling.type", 1),
        ("llama.rope.scaling.factor", "4"),
        ("general.architecture", 7),
        ("general.architecture", None),
    ],
)
def test_an_impossible_optional_field_is_refused(gguf: GGUF, field: str, value: MetadataValue | None) -> None:
    refusal(with_field(gguf, field, value), ModelFileError, field)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("general.architecture", "mamba", "llama"),
        ("general.architecture", "base", "llama"),
        ("general.architecture", "../llama", "llama"),
        ("general.architecture", "", "llama"),
        ("llama.expert_count", 8, "0"),
        ("llama.attention.head_count", 3, "a multiple of head_count_kv, 2"),
        ("llama.attention.key_length", 24, "multiple of 16"),
        ("llama.attention.value_length", 32, "16"),
        ("llama.rope.dimension_count", 7, "even"),
        ("llama.rope.scaling.type", "yarn", "none"),
        ("llama.rope.scaling.type", "longrope", "none"),
        ("llama.rope.scaling.factor", 4.0, "1"),
        ("llama.rope.scale_linear", 4.0, "1"),
    ],
)
def test_what_this_version_would_compute_wrongly_is_refused(
    gguf: GGUF, field: str, value: MetadataValue, expected: str
) -> None:
    refusal(with_field(gguf, field, value), UnsupportedModelError, field, str(value), expected)


@pytest.mark.parametrize("field", ["llama.rope.scaling.type", "llama.rope.scaling.factor", "llama.rope.scale_linear"])
def test_scaling_is_refused_beside_frequency_factors_too(gguf: GGUF, field: str) -> None:
    factors = with_tensor(gguf, "rope_freqs.weight", np.ones(8, np.float32))
    refusal(with_field(factors, field, "yarn" if field.endswith("type") else 2.0), UnsupportedModelError, field)


def test_scaling_that_changes_nothing_is_accepted(gguf: GGUF) -> None:
    for kind, factor in (("none", 1.0), ("linear", 1.0), ("linear", 0.0), ("none", 1)):
        record(with_field(with_field(gguf, "llama.rope.scaling.type", kind), "llama.rope.scaling.factor", factor))


TENSORS = (
    "token_embd.weight",
    "output_norm.weight",
    *(f"blk.1.attn_{name}.weight" for name in ("norm", "q", "k", "v", "output")),
    *(f"blk.1.ffn_{name}.weight" for name in ("norm", "gate", "up", "down")),
)


@pytest.mark.parametrize("name", TENSORS)
def test_a_missing_tensor_is_named(gguf: GGUF, name: str) -> None:
    refusal(with_tensor(gguf, name, None), ModelFileError, repr(name), "missing")


@pytest.mark.parametrize("name", [*TENSORS, "output.weight"])
def test_a_tensor_of_another_shape_is_named(gguf: GGUF, name: str) -> None:
    shape = gguf.tensors[name].shape
    for wrong in ((*shape[:-1], shape[-1] + 32), (*shape, 1), shape[:-1] or (1, 1)):
        file = with_tensor(gguf, name, random(0, *wrong))
        refusal(file, ModelFileError, repr(name), str(list(wrong)), "expected [")


def test_an_embedding_with_more_rows_than_the_head_is_refused(gguf: GGUF) -> None:
    refusal(with_tensor(gguf, "token_embd.weight", random(0, 300, 64)), ModelFileError, "'output.weight'", "[300, 64]")


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.2.attn_q.weight", "blk.0.ffn_gate_exps.weight", "extra"])
def test_a_tensor_that_would_be_left_out_is_named(gguf: GGUF, name: str) -> None:
    refusal(with_tensor(gguf, name, random(0, 64)), UnsupportedModelError, repr(name))


def test_several_tensors_left_over_are_counted(gguf: GGUF) -> None:
    refusal(with_field(gguf, "llama.block_count", 1), UnsupportedModelError, "'blk.1.", "8 others")


def test_fewer_layers_than_said_are_refused(gguf: GGUF) -> None:
    refusal(with_field(gguf, "llama.block_count", 3), ModelFileError, "'blk.2.attn_norm.weight'", "missing")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_frequency_factors_that_are_not_positive_numbers_are_refused(gguf: GGUF, value: float) -> None:
    factors = np.ones(8, np.float32)
    factors[3] = value
    refusal(with_tensor(gguf, "rope_freqs.weight", factors), ModelFileError, "'rope_freqs.weight'", str(value))


def test_frequency_factors_divide_the_frequencies() -> None:
    assert frequencies(100.0, 4, None) == [1.0, 0.1]
    assert frequencies(100.0, 4, np.array([1, 8], np.float32)) == [1.0, 0.0125]


def test_without_a_number_of_key_heads_there_are_as_many_as_query_heads(tmp_path: Path) -> None:
    gguf = GGUF.open(tiny_llama(tmp_path / "tiny.gguf", kv_heads=4))
    assert record(with_field(gguf, "llama.attention.head_count_kv", None)).kv_shape == KVShape(2, 4, 16)


def test_fields_with_defaults_may_be_left_out_or_spelt_out(gguf: GGUF) -> None:
    tokens = tokens_of(0, 12, 256)
    plain = logits(native(gguf), tokens)
    for field in ("llama.rope.dimension_count", "llama.rope.freq_base"):
        assert_same_bits(logits(native(with_field(gguf, field, None)), tokens), plain)
    assert_same_bits(logits(native(with_field(gguf, "llama.attention.key_length", 16)), tokens), plain)
    ones = with_tensor(gguf, "rope_freqs.weight", np.ones(8, np.float32))
    assert_same_bits(logits(native(ones), tokens), plain)


def test_part_of_a_head_may_be_rotated(gguf: GGUF) -> None:
    tokens = tokens_of(0, 12, 256)
    partly = logits(native(with_field(gguf, "llama.rope.dimension_count", 8)), tokens)
    assert np.isfinite(partly).all()
    assert not np.array_equal(partly, logits(native(gguf), tokens))
