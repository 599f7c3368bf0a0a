"""The law of texts: every acceptance rule keeps it with every kind of drafter, and every planted fault breaks it."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import pytest

from outrider import verify
from outrider.certify import controls, faults, law
from outrider.certify.law import LawSetting
from outrider.policy.costs import Costs

LEVEL = 1e-6

SETTINGS = [
    LawSetting(rule, drafter, sampling)
    for (rule, drafter), sampling in zip(
        [(rule, drafter) for rule in law.factors()["rule"] for drafter in law.DRAFTERS],
        cycle(law.SAMPLINGS),
        strict=False,
    )
]


def name(setting):
    return f"{setting.rule}-{setting.drafter}-{setting.sampling}"


def test_all_rules_that_draw_are_tested():
    assert set(law.factors()["rule"]) == set(verify.available()) - {"greedy"}


@pytest.mark.parametrize("setting", SETTINGS, ids=name)
def test_the_law_is_kept(setting):
    cell = law.check(setting, bias=0.12, level=LEVEL, seed=1)
    assert cell.holds, cell.evidence
    assert cell.accepted > 0
    assert cell.fit.smallest_bias <= 0.1201


def test_where_nothing_is_drafted_nothing_is_shown(monkeypatch):
    monkeypatch.setitem(law.POLICIES, "what pays", Costs((1, 2), (0,), ((1.0, 3.0),)))
    setting = LawSetting("rejection", "drawn", "temperature 1", "what pays")
    cell = law.check(setting, bias=0.3, level=LEVEL, seed=1)
    assert cell.fit.holds
    assert not cell.holds
    assert cell.evidence == "no draft was accepted: nothing is shown"
    assert not controls.control(faults.peeking_policy, "law", cell).caught


@pytest.mark.parametrize("sampling", law.SAMPLINGS)
def test_the_exact_law_is_one(sampling):
    params = law.sampling_params(LawSetting("rejection", "drawn", sampling))
    texts = law.exact_law(law.target_logits, params)
    assert len(texts) == 27
    assert sum(texts.values()) == pytest.approx(1)


def test_sampling_rules_have_different_laws():
    """The control: one rule's texts do not have another one's law."""
    setting = LawSetting("coupled", "one-hot", "temperature 1")
    params = law.sampling_params(setting)
    for other in list(law.SAMPLINGS)[1:]:
        wrong = law.exact_law(law.target_logits, law.sampling_params(replace(setting, sampling=other)))
        right = law.exact_law(law.target_logits, params)
        assert sum(abs(right[text] - wrong[text]) for text in right) / 2 > 0.12


@pytest.mark.parametrize(("fault", "setting"), controls.LAW, ids=lambda value: getattr(value, "__name__", ""))
def test_every_planted_fault_is_far_from_unnoticed(fault, setting):
    """At the draws of a quick certificate, and by a margin: no seed is to let one pass."""
    cell = law.check(setting, bias=0.08, level=LEVEL, seed=1, fault=fault)
    assert not cell.holds
    assert cell.fault == ""
    assert cell.fit.p_value < LEVEL**2


def test_the_seed_decides():
    first, again, other = (law.check(SETTINGS[0], bias=0.2, level=LEVEL, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.fit != other.fit


def test_a_run_that_breaks_off_does_not_hold_and_says_why():
    def broken(parts):
        return replace(parts, rule=lambda rule: lambda *arguments: 1 / 0)

    cell = law.check(SETTINGS[0], bias=0.3, level=LEVEL, seed=1, fault=broken)
    assert (cell.holds, cell.fit, cell.evidence) == (False, None, "ZeroDivisionError: division by zero")
