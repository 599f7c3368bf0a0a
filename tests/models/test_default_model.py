"""The default model on real text: the kernels compute the distributions that its file describes."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import pytest

from outrider.models.base import CausalLM
from outrider.tokenizer import Tokenizer
from outrider.types import FloatArray
from outrider.weights.gguf import GGUF
from tests.kernels.workbench import KERNELS
from tests.models.loading import logits, native, reference, with_field, with_tensor
from tests.tiny import default_model

FILE = default_model()

pytestmark = pytest.mark.skipif(FILE is None, reason="needs the default model")

PARAGRAPHS = (
    "A bicycle stays upright because it steers itself under its own centre of mass. When it begins to lean to the "
    "left, the front wheel turns to the left too, and the wheels move back under the rider before he can fall.",
    "def median(values):\n    ordered = sorted(values)\n    middle = len(ordered) // 2\n    return ordered[middle]\n",
    "<|im_start|>user\nWhich is larger, 9.11 or 9.9?<|im_end|>\n<|im_start|>assistant\n9.9 is larger.<|im_end|>\n",
)


@functools.cache
def texts() -> list[list[int]]:
    tokenizer = Tokenizer.from_metadata(GGUF.open(FILE).metadata, "default")
    return [tokenizer.encode(paragraph) for paragraph in PARAGRAPHS]


def distributions(model: CausalLM) -> npt.NDArray[np.float64]:
    """Log-probabilities after every token of every paragraph."""
    return np.concatenate([log_softmax(logits(model, text)) for text in texts()])


def log_softmax(values: FloatArray) -> npt.NDArray[np.float64]:
    shifted = values.astype(np.float64) - values.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def divergence(p: npt.NDArray[np.float64], q: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """KL(p || q) in nats of each row of log-probabilities."""
    return (np.exp(p) * (p - q)).sum(axis=1)


def first_layer(gguf: GGUF) -> GGUF:
    """The model cut off after its first layer."""
    for name in gguf.tensors:
        if name.startswith("blk.") and not name.startswith("blk.0."):
            gguf = with_tensor(gguf, name, None)
    return with_field(gguf, "llama.block_count", 1)


@pytest.mark.parametrize("kernels", KERNELS)
def test_its_first_layer_and_head_agree_with_the_reference(kernels: str) -> None:
    """With activations rounded alike, only a code at an edge that falls to the other side makes a difference."""
    gguf = first_layer(GGUF.open(FILE))
    actual = distributions(native(gguf, kernels))
    assert np.median(divergence(distributions(reference(gguf)), actual)) < 2e-4
    exact = distributions(reference(gguf, quantise_activations=False))
    assert np.median(divergence(exact, actual)) > 4e-4, "negative control"


def test_its_distributions_are_those_that_the_file_describes() -> None:
    """Rounding activations to int8 costs less than 0.01 nats a token.

    The reference with rounded activations is no closer: a code that falls to the other side of an edge disturbs more
    codes in the next layer, and after a few of the thirty layers two ways of rounding are as good as independent.
    """
    expected = distributions(reference(FILE, quantise_activations=False))
    assert divergence(expected, distributions(native(FILE, threads=2))).mean() < 0.01
    faulty = native(with_field(GGUF.open(FILE), "llama.rope.freq_base", 10000.0), threads=2)
    assert divergence(expected, distributions(faulty)).mean() > 0.02, "negative control"
