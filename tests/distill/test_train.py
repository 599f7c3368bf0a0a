from __future__ import annotations

from itertools import islice
from random import Random

import pytest
import torch

from outrider.distill import batches, corpus
from outrider.distill.draft import Draft
from outrider.distill.evaluate import evaluate
from outrider.distill.features import Features
from outrider.distill.head import Head
from outrider.distill.loss import aims
from outrider.distill.train import Training, _going_on
from outrider.distill.vocabulary import frequent
from outrider.heads import tap_layers

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr("outrider.distill.train.ROWS", 200)


@pytest.fixture(scope="module")
def features(target, dialogues, tmp_path_factory):
    made = Features(tmp_path_factory.mktemp("features"), target, tap_layers(8), dialogues, 2**30)
    list(made.compute())
    return made


def training(features, target, kind="head"):
    torch.manual_seed(0)
    student = Head.of(target, frequent(features)) if kind == "head" else Draft.of(target)
    return Training(student, features, seed=1, device=CPU)


def steps(training, count, share=lambda: 0.0):
    trained, _ = corpus.split(training._features.done)
    return list(islice(training.run(trained, share), count))


@pytest.mark.parametrize("kind", ["head", "draft"])
def test_a_student_learns(features, target, kind):
    learning = training(features, target, kind)
    trained, _ = corpus.split(features.done)
    before = evaluate(learning.student, features, trained, CPU)
    steps(learning, 12)
    with learning.averaged():
        assert evaluate(learning.student, features, trained, CPU).overlap > before.overlap + 0.02


def test_from_wrong_answers_nothing_is_learnt(features, target, monkeypatch):
    """The planted fault for the test above."""
    learning = training(features, target)
    trained, _ = corpus.split(features.done)
    before = evaluate(learning.student, features, trained, CPU)
    monkeypatch.setattr("outrider.distill.train.aims", lambda ids, p: aims(ids, p).flip(1))
    steps(learning, 12)
    with learning.averaged():
        assert evaluate(learning.student, features, trained, CPU).overlap <= before.overlap + 0.02


def test_training_goes_on_from_a_checkpoint_as_if_never_interrupted(features, target, tmp_path):
    count = len(list(batches.epoch(features, corpus.split(features.done)[0], 200, Random(0))))
    through = training(features, target)
    steps(through, 2 * count)
    first = training(features, target)
    steps(first, count)
    first.save(tmp_path / "a.pt")
    second = training(features, target)
    second.load(torch.load(tmp_path / "a.pt", weights_only=True))
    assert (second.steps, second.tokens) == (first.steps, first.tokens)
    steps(second, count)
    for one, other in zip(through.student.parameters(), second.student.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(through._average, second._average, strict=True):
        torch.testing.assert_close(one, other)


def test_training_ends_when_its_time_is_over(features, target):
    learning = training(features, target)
    shares = iter([0.0, 0.5, 1.0])
    assert len(steps(learning, 10, lambda: next(shares))) == 2


def test_the_rate_falls_to_nearly_nothing(features, target):
    learning = training(features, target)
    learning.steps = 1000
    rates = []
    for share in (0.0, 0.5, 0.999):
        steps(learning, 1, lambda share=share: share)
        rates.append([optimiser.param_groups[0]["lr"] for optimiser in learning._optimisers])
    for first, half, last in zip(*rates, strict=True):
        assert half == pytest.approx(first / 2)
        assert last == pytest.approx(0.02 * first)


def test_averaged_weights_are_exchanged_and_given_back(features, target):
    learning = training(features, target)
    steps(learning, 3)
    weights = [p.detach().clone() for p in learning.student.parameters()]
    with learning.averaged():
        assert not torch.equal(learning.student.fc.weight, weights[0])
    for one, other in zip(learning.student.parameters(), weights, strict=True):
        assert torch.equal(one, other)


def test_chains_go_on_where_their_token_was_foretold():
    foretold = torch.tensor([[True, False, True, False], [False, True, True, False]])
    counts = torch.tensor([[True, True, True, True], [True, True, False, True]])
    columns = _going_on(foretold, counts)
    assert columns.shape[1] == 2
    assert sorted(columns[0].tolist()) == [0, 2]
    assert columns[1, 0] == 1
    assert int(columns[1, 1]) in (0, 3)  # the one that has nothing more to foretell comes last


def test_the_draft_vocabulary_is_what_the_target_says_most(features, monkeypatch):
    monkeypatch.setattr("outrider.distill.vocabulary.SIZE", 20)
    ids = frequent(features)
    assert ids.tolist() == sorted(set(ids.tolist()))
    said = torch.cat([torch.from_numpy(features.of(n)[1][:, 0].astype("int64")) for n in range(features.done)])
    often = said.bincount(minlength=269).argsort(descending=True)[:5]
    assert set(often.tolist()) <= set(ids.tolist())


def test_ids_that_a_head_has_stay_in_its_vocabulary_however_many_they_are(features, monkeypatch):
    monkeypatch.setattr("outrider.distill.vocabulary.SIZE", 20)
    assert frequent(features, torch.arange(200, 269)).tolist() == list(range(200, 269))
    widened = frequent(features, torch.arange(266, 269)).tolist()
    assert len(widened) == 20
    assert {266, 267, 268} < set(widened)
