"""A head computes what PyTorch computes with the same files, on every kernel set, and each row by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from outrider.cache import KVCache, KVSequence
from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.heads import DraftHead, load, tap_layers
from outrider.heads.checkpoint import Head, read_official
from outrider.heads.model import record_fuser, record_layer
from outrider.kernels.native import NativeProgram
from outrider.kernels.reference import ReferenceProgram
from outrider.sampling import likeliest
from outrider.types import EMPTY, FloatArray
from outrider.weights.tensor_types import TensorType
from tests.heads.tiny_head import HIDDEN, VOCABULARY, TorchHead, tiny_head
from tests.kernels.workbench import KERNELS, Stretch, assert_same_bits, lay_out, random, weight

EMBEDDING = weight("embedding", random(1, VOCABULARY, HIDDEN))
ROWS = 43
TAPS = random(2, ROWS, 3 * HIDDEN)
TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, VOCABULARY, ROWS)]

by_kernels = pytest.mark.parametrize("kernels", KERNELS)


def native(head: Head, kernels: str, threads: int = 1) -> DraftHead:
    fuser = NativeProgram(record_fuser(head), threads=threads, kernels=kernels)
    return DraftHead(head, fuser, NativeProgram(record_layer(head, EMBEDDING), beside=fuser))


def reference(head: Head, *, quantise_activations: bool = True) -> DraftHead:
    programs = record_fuser(head), record_layer(head, EMBEDDING)
    return DraftHead(head, *(ReferenceProgram(p, quantise_activations=quantise_activations) for p in programs))


def read(model: DraftHead, size: int = ROWS) -> tuple[FloatArray, FloatArray]:
    """Logits and hidden states of all rows, `size` rows a pass."""
    cache, sequence = KVCache(model.kv_shape, 4), KVSequence()
    results = []
    for start in range(0, ROWS, size):
        tokens = TOKENS[start : start + size]
        rows = lay_out(cache, [Stretch(sequence, tokens)])
        fused = model.fuse(rows, cache, TAPS[start : start + size])
        results.append([values.copy() for values in model.forward(rows, cache, fused)])
        cache.commit(sequence, start + len(tokens), ())
    logits, hidden = (np.concatenate(parts) for parts in zip(*results, strict=True))
    return logits, hidden


def expected(folder: Path) -> tuple[FloatArray, FloatArray]:
    head = TorchHead(folder, torch.from_numpy(EMBEDDING.floats()))
    logits, hidden = head.forward(head.fuse(torch.from_numpy(TAPS)), torch.tensor(TOKENS))
    return logits.numpy(), hidden.numpy()


def error(actual: FloatArray, wanted: FloatArray) -> float:
    """Root mean square, relative to that of what was wanted."""
    return float(np.sqrt(np.mean((actual - wanted) ** 2) / np.mean(wanted**2)))


SHAPES = {
    "plain": {},
    "own embedding": {"embedding": True},
    "all tokens": {"draft_vocabulary": VOCABULARY},
    "wide heads": {"heads": 3, "kv_heads": 1, "head_dim": 32, "rope_theta": 100000.0},
}


@pytest.mark.parametrize("shape", SHAPES)
@by_kernels
def test_float_weights_give_what_pytorch_gives(tmp_path: Path, kernels: str, shape: str) -> None:
    folder = tiny_head(tmp_path, **SHAPES[shape])
    for actual, wanted in zip(read(native(read_official(folder), kernels)), expected(folder), strict=True):
        assert error(actual, wanted) < 1e-3
    other = tiny_head(tmp_path / "other", **{**SHAPES[shape], "rope_theta": 9000.0})  # negative control
    assert error(read(native(read_official(folder), kernels))[0], expected(other)[0]) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_are_read_as_they_are(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = tiny_head(tmp_path, dtype=dtype)
    assert error(read(native(read_official(folder), KERNELS[-1]))[0], expected(folder)[0]) < 1e-3


@by_kernels
def test_quantised_weights_stay_near_and_agree_with_the_reference(tmp_path: Path, kernels: str) -> None:
    folder = tiny_head(tmp_path)
    head = load(folder)
    assert head.matrices["lm_head.weight"].type == TensorType.Q4_1
    actual = read(native(head, kernels))
    for values, wanted, same in zip(actual, expected(folder), read(reference(head)), strict=True):
        assert 1e-3 < error(values, wanted) < 0.2
        assert error(values, same) < 0.02  # an int8 rounding that falls the other way
    eight = read_official(folder).quantised(lambda name: TensorType.Q8_0)
    assert error(read(native(eight, kernels))[0], expected(folder)[0]) < 0.03


@by_kernels
def test_rows_do_not_depend_on_the_pass_they_are_computed_in(tmp_path: Path, kernels: str) -> None:
    head = load(tiny_head(tmp_path))
    alone = read(native(head, kernels), 1)
    for threads in (1, 2):
        for size in (2, 5, 32, ROWS):
            for actual, wanted in zip(read(native(head, kernels, threads), size), alone, strict=True):
                assert_same_bits(actual, wanted)


LENGTHS = [3, 1, 6, 2]


def begin(model: DraftHead, cache: KVCache) -> tuple[list[KVSequence], FloatArray, FloatArray]:
    """Four texts of which the head has read some positions; with its logits and hidden states after them."""
    sequences = [KVSequence() for _ in LENGTHS]
    stretches = [Stretch(each, TOKENS[n : 2 * n + 1]) for n, each in enumerate(sequences)]
    rows = cache.reserve(stretches, [EMPTY] * len(stretches))
    fused = model.fuse(rows, cache, TAPS[: len(rows.tokens)])
    logits, hidden = model.forward(rows, cache, fused)
    for n, sequence in enumerate(sequences):
        cache.commit(sequence, n + 1, ())
    return sequences, logits, hidden


def chains(model: DraftHead) -> list[tuple[list[int], list[float]]]:
    cache = KVCache(model.kv_shape, 8)
    sequences, _, _ = begin(model, cache)
    ahead = [Stretch(each, [0] * (k - 1), False) for each, k in zip(sequences, LENGTHS, strict=True)]
    return model.draft(cache.reserve(ahead, [EMPTY] * len(ahead)), cache)


def chains_by_single_passes(model: DraftHead) -> list[tuple[list[int], list[float]]]:
    """The same, a pass per text and token, each token chosen here."""
    cache = KVCache(model.kv_shape, 8)
    sequences, *begun = begin(model, cache)
    found = []
    for sequence, length, logits, hidden in zip(sequences, LENGTHS, *(each.copy() for each in begun), strict=True):
        tokens, estimates = [], []
        while True:
            place, estimate = likeliest(logits)
            tokens.append(int(model.target_ids[place]))
            estimates.append(estimate)
            if len(tokens) == length:
                break
            rows = cache.reserve([Stretch(sequence, tokens[-1:], True)], [EMPTY])
            [logits], [hidden] = model.forward(rows, cache, hidden[np.newaxis].copy())
            cache.commit(sequence, sequence.length + 1, ())
        found.append((tokens, estimates))
    return found


@by_kernels
def test_chains_are_those_of_single_passes_whatever_their_lengths(tmp_path: Path, kernels: str) -> None:
    head = load(tiny_head(tmp_path))
    for threads in (1, 2):
        drafted = chains(native(head, kernels, threads))
        assert [len(tokens) for tokens, _ in drafted] == LENGTHS
        assert drafted == chains_by_single_passes(native(head, kernels))
    floats = read_official(tmp_path)
    for (tokens, estimates), (expected_tokens, expected_estimates) in zip(
        chains(native(floats, kernels)), chains(reference(floats)), strict=True
    ):
        assert tokens == expected_tokens
        np.testing.assert_allclose(estimates, expected_estimates, rtol=1e-3)


@by_kernels
def test_a_chain_ends_where_the_head_gives_no_number(tmp_path: Path, kernels: str) -> None:
    head = read_official(tiny_head(tmp_path))
    whole = chains(native(head, kernels))
    poisoned = whole[2][0][1]  # the second token of the longest chain
    values = EMBEDDING.floats().copy()
    values[poisoned] = np.nan
    broken = weight("embedding", values)
    fuser = NativeProgram(record_fuser(head), threads=1, kernels=kernels)
    after = chains(DraftHead(head, fuser, NativeProgram(record_layer(head, broken), beside=fuser)))
    for (tokens, estimates), (before, estimates_before) in zip(after, whole, strict=True):
        end = before.index(poisoned) + 1 if poisoned in before else len(before)
        assert (tokens, estimates) == (before[:end], estimates_before[:end])
    assert len(after[2][0]) == 2


def test_chains_go_on_from_the_last_pass_alone(tmp_path: Path) -> None:
    model = native(load(tiny_head(tmp_path)), KERNELS[-1])
    cache = KVCache(model.kv_shape, 8)
    sequences, _, _ = begin(model, cache)
    rows = cache.reserve([Stretch(sequences[0], [0, 0], False)], [EMPTY])
    with pytest.raises(ValueError, match="another number of wanted rows"):
        model.draft(rows, cache)


def test_an_input_must_be_filled_anew_for_each_pass(tmp_path: Path) -> None:
    model = native(read_official(tiny_head(tmp_path)), KERNELS[-1])
    cache = KVCache(model.kv_shape, 4)
    rows = cache.reserve([Stretch(KVSequence(), TOKENS[:3])], [EMPTY])
    with pytest.raises(ValueError, match="filled with 2 rows, the pass has 3"):
        model.fuse(rows, cache, TAPS[:2])
    model.fuse(rows, cache, TAPS[:3])
    with pytest.raises(ValueError, match="filled with 0 rows, the pass has 3"):
        model._fuser.run(rows, cache, {})
    with pytest.raises(ValueError, match="width"):
        model.fuse(rows, cache, TAPS[:3, 1:].copy())


def test_a_head_shares_threads_and_embedding_with_its_target(tmp_path: Path) -> None:
    target = NativeProgram(record_layer(read_official(tiny_head(tmp_path)), EMBEDDING), threads=2)
    head = DraftHead.beside(target, EMBEDDING, read_official(tiny_head(tmp_path, seed=1)))
    assert head._layer._team is target._team
    assert head._layer._packed[EMBEDDING] is target._packed[EMBEDDING]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"vocabulary": 300}, "vocab_size is 300, the target's is 269"),
        ({"hidden": 96}, "hidden_size is 96, the target's is 64"),
    ],
)
def test_a_head_of_another_model_is_refused(tmp_path: Path, shape: dict[str, int], message: str) -> None:
    target = NativeProgram(record_layer(read_official(tiny_head(tmp_path / "a")), EMBEDDING), threads=1)
    with pytest.raises(ModelFileError, match=message):
        DraftHead.beside(target, EMBEDDING, read_official(tiny_head(tmp_path / "b", **shape)))


def test_the_taps_are_those_of_the_official_implementations() -> None:
    assert tap_layers(32) == (2, 16, 29)
    assert tap_layers(30) == (2, 15, 27)
    assert tap_layers(7) == (2, 3, 4)
    with pytest.raises(UnsupportedModelError, match="6 layers"):
        tap_layers(6)
