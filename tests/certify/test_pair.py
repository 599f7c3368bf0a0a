"""A target with a draft model of its own: what drafts for the user is certified, too."""

from __future__ import annotations

import pytest

from outrider.certify import Extent, certify, controls, report
from outrider.certify.covering import pairwise
from outrider.certify.drafters import OWN
from outrider.errors import ModelError
from tests.tiny import tiny_llama

PAIR = Extent("pair", lambda factors: [row for row in pairwise(factors) if row["drafter"] == OWN], bias=0.3, draws=400)
"""Of the texts, only those with the draft model."""


@pytest.fixture(scope="module")
def certificate(model_path, tmp_path_factory):
    small = tiny_llama(tmp_path_factory.mktemp("pair") / "small.gguf", seed=1, layers=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controls, "LAW", ())
        patch.setattr(controls, "DRAWS", controls.DRAWS[:1])
        patch.setattr(controls, "identity", lambda threads: [])
        return certify(model_path, draft=small, extent=PAIR, threads=1)


def test_it_holds_and_names_the_draft(certificate):
    assert [cell.evidence for cell in (*certificate.identity, *certificate.draws) if not cell.holds] == []
    assert certificate.holds
    assert certificate.draft.endswith("small.gguf")
    assert certificate.draft in report.facts(certificate)["draft"]


def test_texts_are_drafted_by_it_in_every_way(certificate):
    assert {cell.setting.drafter for cell in certificate.identity} == {OWN}
    assert {cell.setting.k for cell in certificate.identity} == {1, 2, 3, 5, 8}
    assert all(cell.drafted > 0 for cell in certificate.identity)


def test_its_own_draws_are_counted_under_each_rule(certificate):
    counted = {cell.setting.rule: cell for cell in certificate.draws if cell.setting.drafter == OWN}
    assert counted.keys() == {"block", "coupled", "rejection"}
    assert all(cell.drafted > 100 for cell in counted.values())


def test_a_draft_that_is_not_there(model_path):
    with pytest.raises(ModelError, match=r"absent\.gguf"):
        certify(model_path, draft="absent.gguf", threads=1)
