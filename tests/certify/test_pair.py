"""A target with a draft model of its own: what drafts for the user is certified, too."""

from __future__ import annotations

import pytest

from outrider.certify import Extent, certify, controls, report
from outrider.certify.covering import pairwise
from outrider.certify.drafters import OWN, as_tree
from outrider.certify.identity import PROMPTS, Identity, IdentityCell, IdentitySetting
from outrider.certify.run import load
from outrider.drafts import FOLLOWERS, Draft
from outrider.errors import ModelError
from outrider.llm import LLM
from outrider.policy.costs import FREE
from tests.heads.tiny_head import tiny_head
from tests.tables import table_folder
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
    assert all(cell.answered > 0.95 * cell.asked > 0 for cell in certificate.identity)


def test_its_own_draws_are_counted_under_each_rule(certificate):
    counted = {cell.setting.rule: cell for cell in certificate.draws if cell.setting.drafter == OWN}
    assert counted.keys() == {"block", "coupled", "rejection"}
    assert all(cell.drafted > 100 for cell in counted.values())


def test_a_draft_that_is_not_there(model_path):
    with pytest.raises(ModelError, match=r"absent\.gguf"):
        certify(model_path, draft="absent.gguf", threads=1)


def checked(llm: LLM, drafter: str, memory: str, shape: str = "chain") -> IdentityCell:
    comparison = Identity(tuple(tuple(llm.encode(prompt)) for prompt in PROMPTS), seed=5)
    setting = IdentitySetting(drafter, 3, shape, 8, 1, memory, "greedy")
    cell = comparison.check(llm, comparison.plain(llm, "greedy"), setting)
    assert cell.holds, cell.evidence
    return cell


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_a_head_finds_the_hidden_states_that_it_would_find_outside(tmp_path, shape):
    """Of a warm prompt, one position more is computed for it."""
    llm = LLM(tiny_llama(tmp_path / "t.gguf", layers=7), draft=tiny_head(tmp_path / "head"), threads=1, costs=FREE)
    without = checked(llm, "half right", "cold and warm", shape)
    assert checked(llm, OWN, "cold and warm", shape).cached <= without.cached - len(PROMPTS)


def test_what_is_altered_is_the_same_in_all_else(tmp_path):
    llm = LLM(tiny_llama(tmp_path / "t.gguf", layers=7), draft=tiny_head(tmp_path / "head"), threads=1, costs=FREE)
    for drafter in (llm.own_draft, llm.policy):
        altered = as_tree(drafter, llm.model.vocabulary_size)
        members = ("name", "cost", "draws", "taps", "expected")
        assert [getattr(altered, name) for name in members] == [getattr(drafter, name) for name in members]
        assert altered.taps


def test_the_table_of_the_model_drafts(model_path, llm, tmp_path):
    text = [token for output in llm.generate(list(PROMPTS)) for token in output.token_ids]
    pair = LLM(model_path, draft=table_folder(tmp_path / "draft", text), threads=1, costs=FREE)
    assert checked(pair, "suffix", "chunked").accepted > checked(llm, "suffix", "chunked").accepted
    # Where rows are dear, what one text gets another one lacks: a policy with a table need not accept more in all.
    assert checked(pair, "auto", "chunked").drafted != checked(llm, "auto", "chunked").drafted


def test_what_ships_is_certified_with_a_model_that_was_loaded_without(llm, tmp_path, monkeypatch):
    assert load(llm, 1, None) is llm
    table = table_folder(tmp_path / "draft", [1, 2, 3]) / FOLLOWERS
    monkeypatch.setattr("outrider.drafts.shipped", lambda target: Draft(followers=table))
    assert load(llm, 1, None).speculation.length is None
