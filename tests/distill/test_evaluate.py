"""Acceptance, as measured, of students whose drafts are known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outrider.distill import corpus
from outrider.distill.acceptance import DRAFTED
from outrider.distill.evaluate import evaluate
from outrider.distill.features import Features
from outrider.distill.student import Student

CPU = torch.device("cpu")


class Oracle(Student):
    """Knows the text, and is wrong at every token whose position `wrong` says."""

    steps = 1

    def __init__(self, wrong=lambda position: False):
        super().__init__(torch.arange(269), 269)
        self.wrong = wrong

    def output(self):
        return 50 * torch.eye(269)

    def chains(self, batch):
        return OracleChains(self, batch)


class OracleChains:
    def __init__(self, oracle, batch):
        self.oracle, self.tokens, self.starts, self.step = oracle, batch.tokens, batch.starts, 0

    def advance(self):
        at = (self.starts + 2 + self.step).clamp(max=self.tokens.shape[1] - 1)
        said = self.tokens.gather(1, at)
        wrong = torch.tensor([[self.oracle.wrong(position) for position in row] for row in at.tolist()])
        self.step += 1
        return torch.nn.functional.one_hot(torch.where(wrong, (said + 1) % 269, said), 269).float()


@pytest.fixture(scope="module")
def features(target, dialogues, tmp_path_factory):
    greedy = [d for d in dialogues if d.temperatures == [0.0]][:2]
    warm = [d for d in dialogues if all(d.temperatures)][:1]
    made = Features(tmp_path_factory.mktemp("features"), target, (), greedy + warm, 2**30)
    list(made.compute())
    return made


def test_who_knows_the_text_is_always_accepted(features):
    acceptance = evaluate(Oracle(), features, [0, 1], CPU)
    assert acceptance.per_position == (1.0,) * DRAFTED
    answered = sum(end - start for d in features.dialogues[:2] for start, end in d.answers)
    assert acceptance.places == answered
    steps = sum(-(-(d.answers[0][1] - d.answers[0][0]) // (DRAFTED + 1)) for d in features.dialogues[:2])
    assert acceptance.tokens_per_step == pytest.approx(answered / steps)


def test_who_is_always_wrong_is_never_accepted(features):
    acceptance = evaluate(Oracle(lambda position: True), features, [0, 1], CPU)
    assert acceptance.per_position == (0.0,) * DRAFTED
    assert acceptance.tokens_per_step == 1.0


def test_rates_are_given_that_the_tokens_before_were_accepted(features):
    """Wrong at every third position: of three chains one breaks at once, one at its second token, one at its third."""
    acceptance = evaluate(Oracle(lambda position: position % 3 == 0), features, [0, 1], CPU)
    first, second, third, *_ = acceptance.per_position
    assert first == pytest.approx(2 / 3, abs=0.02)
    assert second == pytest.approx(1 / 2, abs=0.02)
    assert third == 0.0
    assert acceptance.tokens_per_step == pytest.approx(3, abs=0.1)


def test_texts_drawn_warm_are_left_out_where_there_are_greedy_ones(features):
    assert evaluate(Oracle(), features, [0, 1, 2], CPU).places == evaluate(Oracle(), features, [0, 1], CPU).places
    assert evaluate(Oracle(), features, [2], CPU).places > 0


def test_the_overlap_of_a_certain_draft_is_the_targets_probability_of_it(features):
    acceptance = evaluate(Oracle(), features, [0], CPU)
    logs = features.of(0)[2].astype(float)
    assert acceptance.overlap == pytest.approx(float(np.exp(logs[:, 0]).mean()), abs=0.01)


def test_one_dialogue_in_so_many_is_held_out(features):
    trained, held = corpus.split(features.done)
    assert sorted(trained + held) == [0, 1, 2]
    assert len(held) == 1
