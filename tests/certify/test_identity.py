"""Texts that are compared with plain ones: what holds, and what does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.certify import controls, faults, identity
from outrider.certify.covering import pairwise
from outrider.certify.drafters import DRAFTERS, OWN, SHAPES, TALKATIVE
from outrider.certify.identity import PROMPTS, Identity, IdentitySetting, Text
from outrider.certify.rig import FunctionDrafter
from outrider.request import Request
from outrider.types import EMPTY

SETTING = IdentitySetting("half right", 5, "chain", 8, 1, "chunked", "greedy")


class Comparison:
    """Plain texts, and what is compared with them."""

    def __init__(self, llm):
        self.identity = Identity(tuple(tuple(llm.encode(prompt)) for prompt in PROMPTS), seed=5)
        self.plain = {name: self.identity.plain(llm, name) for name in identity.SAMPLINGS}

    def check(self, llm, setting, fault=None):
        return self.identity.check(llm, self.plain[setting.sampling], setting, fault)


@pytest.fixture(scope="module")
def comparison(llm):
    return Comparison(llm)


def test_a_covering_array_of_settings_holds(llm, comparison):
    cells = [comparison.check(llm, IdentitySetting(**values)) for values in pairwise(identity.factors((1,)))]
    assert [cell.evidence for cell in cells if not cell.holds] == []
    assert {cell.setting.drafter for cell in cells} == set(DRAFTERS) - {OWN}  # this model has none
    for cell in cells:
        assert cell.texts == len(PROMPTS) * (1 + (cell.setting.memory == "cold and warm"))
        assert cell.tokens == cell.texts * identity.MAX_TOKENS
        if cell.setting.drafter in TALKATIVE:
            assert cell.answered > 0.95 * cell.asked > 0


def test_a_drafter_that_falls_silent_shows_nothing(llm, comparison, monkeypatch):
    silent = FunctionDrafter("silent", lambda request: EMPTY)
    setting = replace(SETTING, drafter="random")
    monkeypatch.setattr(identity, "DRAFTERS", {"random": lambda knowledge: silent})
    cell = comparison.check(llm, setting)
    assert (cell.holds, cell.answered, cell.difference) == (False, 0, "")
    assert cell.evidence == f"not shown: something was drafted in 0 of {cell.asked} steps"
    assert not controls.control(faults.rows_off_by_one, "identity", cell).caught


def test_drafters_do_what_their_names_say(llm, comparison):
    def share(drafter, shape="chain"):
        cell = comparison.check(llm, replace(SETTING, drafter=drafter, shape=shape, k=6))
        return cell.accepted / cell.drafted

    assert share("perfect") == 1
    assert share("perfect", "tree") == pytest.approx(1 / 3, abs=0.1)
    assert 0.4 < share("half right") < 0.9
    assert 0.5 < share("prediction") < 1
    assert share("random") < 0.1
    assert share("one late") < 0.3


def test_scarce_memory_pushes_requests_out(llm, comparison):
    assert comparison.check(llm, replace(SETTING, memory="scarce")).preemptions > 0
    assert comparison.check(llm, SETTING).preemptions == 0


def test_known_prompts_are_not_computed_again(llm, comparison):
    """All but two tokens of each, the second time; few the first time, as no two begin alike for long."""
    prompts = sum(len(llm.encode(prompt)) - 2 for prompt in PROMPTS)
    cold = comparison.check(llm, SETTING).cached
    assert cold < prompts / 4
    assert comparison.check(llm, replace(SETTING, memory="cold and warm")).cached == cold + prompts


def test_seeded_texts_are_not_greedy_ones(comparison):
    texts = {name: [text.output for text in plain] for name, plain in comparison.plain.items()}
    assert len({str(text) for text in texts.values()}) == len(identity.SAMPLINGS)


def test_every_drafter_has_both_shapes():
    assert set(SHAPES) == {"chain", "tree"}


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        (faults.rows_off_by_one, {}),
        (faults.kv_not_rolled_back, {}),
        (faults.block_not_copied, {"memory": "cold and warm"}),
        (faults.path_not_moved, {"drafter": "perfect", "shape": "tree", "k": 8}),
        (faults.penalties_once_a_step, {"drafter": "perfect", "sampling": "greedy with penalties"}),
    ],
)
def test_a_planted_fault_gives_another_text(llm, comparison, fault, changes):
    setting = replace(SETTING, **changes)
    assert comparison.check(llm, setting).holds
    cell = comparison.check(llm, setting, fault)
    assert not cell.holds
    assert "token" in cell.difference
    assert cell.fault == ""


def test_a_run_that_breaks_off_does_not_hold_and_says_why(llm, comparison):
    def broken(parts):
        return replace(parts, rule=lambda rule: lambda *arguments: 1 / 0)

    cell = comparison.check(llm, SETTING, broken)
    assert (cell.holds, cell.difference, cell.fault) == (False, "", "ZeroDivisionError: division by zero")
    assert cell.evidence == cell.fault


def finished(tokens, text="", reason="length"):
    request = Request([1])
    request.tokens += tokens
    request.pieces, request.finish_reason = [text], reason
    return request


def test_a_difference_is_in_tokens_text_or_end(llm):
    plain = Text((5, 6), "ab", "length")
    assert identity.first_difference(llm, [plain], [finished([5, 6], "ab")]) == ""
    assert "token 1" in identity.first_difference(llm, [plain], [finished([5, 7], "ab")])
    assert "1 tokens" in identity.first_difference(llm, [plain], [finished([5], "ab")])
    assert identity.first_difference(llm, [plain], [finished([5, 6], "a")]) != ""
    assert "stop" in identity.first_difference(llm, [plain], [finished([5, 6], "ab", "stop")])
