from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from outrider.cache import KVCache, KVSequence
from outrider.distill import target as reading
from outrider.distill.features import Features, likeliest
from outrider.kernels.reference import ReferenceModel
from outrider.models import record
from outrider.types import Proposal

LAYERS = (2, 4, 5)


@dataclass
class Stretch:
    sequence: KVSequence
    tokens: list[int]
    wanted: bool = True


def features(folder, target, dialogues, most=2**30, layers=LAYERS):
    return Features(folder, target, layers, dialogues, most)


def computed(*args, **options):
    made = features(*args, **options)
    list(made.compute())
    return made


def arrays(made, number):
    return [np.array(array) for array in made.of(number)]


def whole(target, tokens):
    """Taps and logits after every token, by the NumPy interpreter, in one piece."""
    recorded = record(target.gguf, LAYERS)
    model = ReferenceModel(recorded.program, context_length=512, kv_shape=recorded.kv_shape)
    cache = KVCache(recorded.kv_shape, KVCache.blocks_for(len(tokens)))
    rows = cache.reserve([Stretch(KVSequence(), tokens[:1])], [Proposal.chain(tokens[1:], "")])
    output = model.forward(rows, cache)
    return np.concatenate([output.taps[layer] for layer in LAYERS], axis=1), output.logits


@pytest.fixture(params=[7, 128])
def piece(request, monkeypatch):
    monkeypatch.setattr(reading, "_PIECE", request.param)


def test_features_are_what_the_target_computes(target, dialogues, tmp_path, piece):
    dialogue = max(dialogues, key=lambda dialogue: len(dialogue.answers))
    taps, candidates, logs = arrays(computed(tmp_path / "f", target, [dialogue]), 0)
    expected, logits = whole(target, dialogue.tokens)
    np.testing.assert_allclose(taps, expected[:-1], rtol=2e-3, atol=2e-2)
    places = np.concatenate([np.arange(start - 1, end - 1) for start, end in dialogue.answers])
    np.testing.assert_array_equal(candidates[:, 0], logits[places].argmax(1))
    probabilities = np.exp(logits[places] - logits[places].max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    np.testing.assert_allclose(np.exp(logs), np.take_along_axis(probabilities, candidates.astype(int), 1), atol=2e-3)


def test_the_likeliest_are_those_that_sorting_gives():
    logits = np.random.default_rng(0).integers(-40, 40, (20, 999)).astype(np.float32)
    for count, width in ((5, 32), (64, 2), (64, 32), (999, 1)):
        maxima = np.maximum.reduceat(logits, range(0, 999, width), axis=1)
        ids, _ = likeliest(logits, maxima, count)
        assert np.array_equal(ids, np.argsort(-logits, axis=1, kind="stable")[:, :count])


def test_the_likeliest_come_in_order_and_of_equals_the_lowest_first():
    logits = np.array([[0.0, 3.0, 1.0, 3.0, 2.0]], np.float32)
    maxima = np.maximum.reduceat(logits, range(0, logits.shape[1], 2), axis=1)
    ids, logs = likeliest(logits, maxima, 3)
    assert ids.tolist() == [[1, 3, 4]]
    assert np.exp(logs[0, 0]) == pytest.approx(np.exp(3) / np.exp(logits).sum())


def test_an_interrupted_computation_goes_on(target, dialogues, tmp_path):
    some = dialogues[:5]
    made = features(tmp_path / "f", target, some)
    run = made.compute()
    next(run), next(run)
    run.close()
    with (tmp_path / "f" / "taps.bin").open("ab") as file:
        file.write(b"half a row")  # what a crash leaves
    again = features(tmp_path / "f", target, some)
    assert again.done == 2
    list(again.compute())
    at_once = computed(tmp_path / "g", target, some)
    for number in range(5):
        for one, other in zip(arrays(again, number), arrays(at_once, number), strict=True):
            np.testing.assert_array_equal(one, other)
    assert sum(file.stat().st_size for file in (tmp_path / "f").glob("*.bin")) == again.nbytes == again.nbytes_done


def test_a_crash_loses_little(target, dialogues, tmp_path, monkeypatch):
    monkeypatch.setattr("outrider.distill.features._NOTED", 2)
    running = features(tmp_path / "f", target, dialogues[:5]).compute()
    for _ in range(3):
        next(running)  # and it is not closed
    assert features(tmp_path / "f", target, dialogues[:5]).done == 2


def test_a_corpus_may_grow(target, dialogues, tmp_path):
    computed(tmp_path / "f", target, dialogues[:2])
    assert features(tmp_path / "f", target, dialogues[:3]).done == 2


@pytest.mark.parametrize("change", ["corpus", "layers", "damage"])
def test_features_of_something_else_are_thrown_away(target, dialogues, tmp_path, change):
    computed(tmp_path / "f", target, dialogues[:2])
    if change == "damage":
        (tmp_path / "f" / "features.json").write_text("{")
    first = dialogues[1:3] if change == "corpus" else dialogues[:2]
    layers = (2, 3, 5) if change == "layers" else LAYERS
    assert features(tmp_path / "f", target, first, layers=layers).done == 0
    assert not (tmp_path / "f").exists()


def test_disk_use_is_bounded_and_known_beforehand(target, dialogues, tmp_path):
    full = features(tmp_path / "f", target, dialogues[:4])
    assert full.nbytes > 0
    assert not (tmp_path / "f").exists()
    less = features(tmp_path / "f", target, dialogues[:4], most=full.nbytes - 1)
    assert len(less.dialogues) == 3
    assert less.nbytes < full.nbytes


def test_a_draft_model_needs_no_taps(target, dialogues, tmp_path):
    made = computed(tmp_path / "f", target, dialogues[:1], layers=())
    assert made.of(0)[0].shape == (len(dialogues[0].tokens) - 1, 0)
