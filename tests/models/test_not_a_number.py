"""A damaged weight shows as NaN in the logits of exactly the rows that depend on it, so that those can fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from outrider.cache import KVCache, KVSequence
from outrider.models.base import CausalLM
from outrider.types import FloatArray
from outrider.weights.gguf import GGUF, TensorType
from tests.kernels.workbench import KERNELS, Stretch, assert_same_bits, lay_out, run
from tests.models.loading import native, with_tensor
from tests.tiny import float_weights, tiny_llama

BAD_TOKEN = 7
TEXTS = ([1, 2, BAD_TOKEN, 4, 5], [10, 11, 12, 13], [BAD_TOKEN])
CLEAN = [0, 1, 5, 6, 7, 8]
"""The rows before the bad token of the first text, and all of the second."""

by_kernels = pytest.mark.parametrize("kernels", KERNELS)
by_bad = pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])


@pytest.fixture(scope="module", params=[TensorType.Q4_1, TensorType.F16], ids=lambda kind: kind.name)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", weight_type=request.param)


def damaged(path: Path, name: str, index: tuple[int, ...], bad: float) -> GGUF:
    values = float_weights(path)[name]
    values[index] = bad
    return with_tensor(GGUF.open(path), name, values)


def logits(model: CausalLM) -> FloatArray:
    """Of all texts, in one pass."""
    cache = KVCache(model.kv_shape, 4)
    return run(model, lay_out(cache, [Stretch(KVSequence(), text) for text in TEXTS]), cache)


@by_bad
@by_kernels
def test_a_bad_embedding_spoils_its_token_and_what_follows(kernels: str, bad: float, path: Path) -> None:
    clean = logits(native(path, kernels))
    touched = np.setdiff1d(np.arange(len(clean)), CLEAN)
    for threads in (1, 2):
        spoilt = logits(native(damaged(path, "token_embd.weight", (BAD_TOKEN, 20), bad), kernels, threads))
        assert not np.isfinite(spoilt[touched]).any()
        assert np.isfinite(clean).all()
        assert_same_bits(spoilt[CLEAN], clean[CLEAN])


@by_bad
@by_kernels
def test_a_bad_row_of_the_head_spoils_one_logit(kernels: str, bad: float, path: Path) -> None:
    spoilt = logits(native(damaged(path, "output.weight", (33, 5), bad), kernels))
    np.testing.assert_array_equal(~np.isfinite(spoilt), np.broadcast_to(np.arange(269) == 33, spoilt.shape))


@pytest.mark.parametrize("name", ["blk.0.attn_v", "blk.1.attn_q", "blk.0.attn_norm", "blk.1.ffn_down", "output_norm"])
@by_bad
@by_kernels
def test_any_other_bad_weight_spoils_everything(kernels: str, bad: float, name: str, path: Path) -> None:
    index = (3, 4)[: 1 if "norm" in name else 2]
    assert not np.isfinite(logits(native(damaged(path, f"{name}.weight", index, bad), kernels))).any()
