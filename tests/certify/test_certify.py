"""`certify`: all checks on a model, each once, and a certificate that holds only if all of them do."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from outrider.certify import FULL, PROMPTS, QUICK, certify, controls, draws, identity, law
from outrider.certify.statistics import FAMILY_ALARMS
from outrider.errors import ModelError, RequestError


def test_it_holds(certificate):
    assert certificate.holds
    assert all(cell.holds for cell in (*certificate.identity, *certificate.law, *certificate.draws))
    assert all(control.caught for control in certificate.controls)


def test_every_check_is_there_once(certificate):
    for cells in (certificate.identity, certificate.law, certificate.draws):
        settings = [cell.setting for cell in cells]
        assert len(settings) == len(set(settings)) > 5
    planted = [(control.test, control.setting) for control in certificate.controls]
    assert len(planted) == 5 + 2 + 2


def test_each_control_has_an_honest_twin(certificate):
    """A fault is caught in a setting in which the honest engine passed."""
    honest = {
        "identity": {cell.setting for cell in certificate.identity},
        "law": {cell.setting for cell in certificate.law},
        "draws": {cell.setting for cell in certificate.draws},
    }
    assert all(control.setting in honest[control.test] for control in certificate.controls)


def test_all_tests_together_have_one_false_alarm_rate(certificate):
    assert certificate.level * (len(certificate.law) + len(certificate.draws)) == pytest.approx(FAMILY_ALARMS)
    levels = {cell.fit.level for cell in (*certificate.law, *certificate.draws)}
    assert levels == {certificate.level}


def test_the_model_is_named_and_hashed(certificate, model_path):
    data = model_path.read_bytes()
    assert certificate.model.name == "tiny.gguf"
    assert certificate.model.bytes == len(data)
    assert certificate.model.sha256 == hashlib.sha256(data).hexdigest()
    assert certificate.machine.threads == (1,)


def test_progress_counts_every_check(certificate, told):
    cells = len(certificate.identity) + len(certificate.law) + len(certificate.draws) + len(certificate.controls)
    assert [done for _, done, _ in told] == list(range(cells))
    assert {total for _, _, total in told} == {cells}


@pytest.mark.parametrize("part", ["identity", "law", "draws", "controls"])
def test_a_single_failure_is_enough(certificate, part):
    first, *others = getattr(certificate, part)
    changes = {
        "identity": {"difference": "x"},
        "law": {"fit": None},
        "draws": {"fit": None},
        "controls": {"caught": False},
    }
    assert not replace(certificate, **{part: (replace(first, **changes[part]), *others)}).holds


def test_a_fault_that_breaks_the_run_is_not_caught(certificate):
    """A crash is no verdict: the control may be what is broken."""
    crashed = replace(certificate.law[0], fit=None, fault="ValueError: of its own")
    biased = replace(certificate.law[0], fit=replace(certificate.law[0].fit, p_value=0.0))
    fault = controls.LAW[0][0]
    assert not controls.control(fault, "law", crashed).caught
    assert not controls.control(fault, "law", certificate.law[0]).caught
    assert controls.control(fault, "law", biased).caught


def test_texts_with_several_threads_are_compared_with_those_of_one(llm, monkeypatch):
    """Everything but the texts is left out."""
    monkeypatch.setattr(law, "factors", lambda: {"rule": [], "drafter": [], "sampling": []})
    monkeypatch.setattr(draws, "factors", lambda own_draft: {"rule": [], "drafter": []})
    monkeypatch.setattr(controls, "LAW", controls.LAW[:1])
    monkeypatch.setattr(controls, "DRAWS", controls.DRAWS[:1])
    few = replace(QUICK, bias=0.3, draws=100, combinations=lambda factors: list(QUICK.combinations(factors))[::8])
    certificate = certify(llm, extent=few, threads=2, prompts=PROMPTS[:2])
    assert certificate.machine.threads == (1, 2)
    assert {cell.setting.threads for cell in certificate.identity} == {1, 2}
    assert all(cell.holds for cell in certificate.identity)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": []}, "prompts: there are none"),
        ({"prompts": ["fits", "x" * 300]}, "prompt 2 has 300 tokens; expected 1 to 232"),
        ({"prompts": [""]}, "prompt 1 has 0 tokens"),
        ({"seed": -1}, "seed=-1 is not possible"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_what_is_impossible_is_said_at_once(llm, arguments, message):
    with pytest.raises(RequestError, match=message):
        certify(llm, extent=QUICK, **arguments)


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(ModelError):
        certify(tmp_path / "missing.gguf")


def test_quick_covers_every_pair_and_full_everything():
    factors = identity.factors((1, 2))
    assert len(list(QUICK.combinations(factors))) < 50
    assert {name for row in QUICK.combinations(factors) for name in row} == set(factors)
    full = list(FULL.combinations(factors))
    assert len(full) == 9 * (5 * 2 - 1) * 2 * 2 * 3 * 4  # a tree of a single draft is a chain
    assert len({str(row) for row in full}) == len(full)
