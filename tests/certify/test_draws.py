"""Draws of a real model, counted by where they leave its most probable continuation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from outrider.certify import controls, faults
from outrider.certify.covering import every
from outrider.certify.draws import LENGTH, TOP_K, Draws, DrawsSetting, factors, next_logits
from outrider.sampling import SamplingParams

LEVEL = 1e-6
SETTINGS = [DrawsSetting(**values) for values in every(factors())]


@pytest.fixture(scope="module")
def draws(llm):
    return Draws(llm, seed=3)


def test_the_continuation_is_the_greedy_one(llm, draws):
    assert list(draws.path) == list(llm.generate(["Water boils at"], SamplingParams(max_tokens=LENGTH))[0].token_ids)


def test_the_law_is_one(draws):
    assert sum(draws.law.values()) == pytest.approx(1)
    assert len(draws.law) == LENGTH * (TOP_K - 1) + 1
    assert draws.law[0, next(token for depth, token in draws.law if depth == 0)] > 0


def test_ends(draws):
    a, b, *_ = draws.path
    wrong = (a + 1) % 256
    assert draws.end([]) is None
    assert draws.end([a, b]) is None
    assert draws.end([wrong, a]) == (0, wrong)
    assert draws.end([a, a + 1 if b == a else a]) == (1, a + 1 if b == a else a)
    assert draws.end([*draws.path, wrong]) == (LENGTH, None)


def test_logits_after_a_text_are_those_of_its_last_row(llm):
    whole = next_logits(llm.model, [5, 6, 7])
    assert whole.shape == (llm.model.vocabulary_size,)
    assert np.array_equal(whole, next_logits(llm.model, [5, 6, 7]))
    assert not np.array_equal(whole, next_logits(llm.model, [5, 6, 8]))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_models_law_is_kept(draws, setting):
    cell = draws.check(setting, draws=400, level=LEVEL)
    assert cell.holds, cell.evidence
    assert cell.drafted > cell.accepted > 0
    assert cell.fit.draws == 400


@pytest.mark.parametrize(
    ("fault", "setting"),
    [*controls.DRAWS, (faults.drawn_from_p, DrawsSetting("rejection", "drawn"))],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_fault_is_seen(draws, fault, setting):
    cell = draws.check(setting, draws=1000, level=LEVEL, fault=fault)
    assert not cell.holds
    assert cell.fit is not None


def test_a_run_that_breaks_off_does_not_hold_and_says_why(draws):
    def broken(parts):
        return replace(parts, rule=lambda rule: lambda *arguments: 1 / 0)

    cell = draws.check(SETTINGS[0], draws=10, level=LEVEL, fault=broken)
    assert (cell.holds, cell.fit, cell.evidence) == (False, None, "ZeroDivisionError: division by zero")
