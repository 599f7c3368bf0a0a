"""`outrider generate --compare`: both ways on one engine, and an exit code that says whether the texts are the same."""

from __future__ import annotations

import json
import re

import pytest

from outrider import scheduler
from outrider.cli import compare
from outrider.llm import Completion
from outrider.types import Outcome


def accept_everything(monkeypatch):
    """Negative control: a rule that believes every draft."""
    honest = scheduler.rule

    def rule(name):
        def verify(logits, proposal, *rest):
            if not proposal:
                return honest(name)(logits, proposal, *rest)
            return Outcome(tuple(range(len(proposal))), int(logits[-1].argmax()))

        return verify

    monkeypatch.setattr(scheduler, "rule", rule)


def test_texts_are_identical_and_both_speeds_are_told(outrider):
    result = outrider("generate", "Hello", "-n", 100, "--compare", "--speculation", "suffix:5")
    assert result.exit_code == 0
    assert re.fullmatch(
        r"plain +\d+\.\d tokens/s\n"
        r"speculative +\d+\.\d tokens/s +\d\.\d\d tokens per step, \d+% of \d+ drafts accepted \(suffix\)\n"
        r"speed-up +\d+\.\d\dx, medians of 3 runs each\n"
        r"texts +identical, 100 tokens\n",
        result.stdout,
    )


def test_plain_and_speculative_take_turns_on_one_engine(outrider, seen):
    outrider("generate", "Hello", "-n", 100, "--compare", "--speculation", "suffix:5")
    assert len({id(llm) for llm, _ in seen}) == 1
    requests = [request for _, request in seen]
    assert [request.params.max_tokens for request in requests] == [16, 16] + [100] * 6
    assert [request.stats.drafted > 0 for request in requests[2:]] == [False, True] * 3


def test_texts_that_differ_are_exit_code_1(outrider, monkeypatch):
    accept_everything(monkeypatch)
    result = outrider("generate", "Hello", "-n", 100, "--compare", "--speculation", "suffix:5")
    assert result.exit_code == 1
    assert re.search(r"^texts +DIFFERENT from token \d+ on$", result.stdout, re.MULTILINE)


def test_json_tells_where_texts_differ(outrider, monkeypatch):
    (same, different) = [], []
    for found in (same, different):
        result = outrider("generate", "Hello", "-n", 100, "--compare", "--speculation", "suffix:5", "--json")
        found += [result.exit_code, json.loads(result.stdout)]
        accept_everything(monkeypatch)
    assert same[0] == 0
    assert (same[1]["identical"], same[1]["first_difference"]) == (True, None)
    assert same[1]["ratio"] == pytest.approx(
        same[1]["speculative_tokens_per_second"] / same[1]["plain_tokens_per_second"], rel=1e-3
    )
    assert different[0] == 1
    assert different[1]["identical"] is False
    assert 0 < different[1]["first_difference"] < 100


@pytest.mark.parametrize("seed", [None, 5])
def test_sampling_has_one_seed_for_both(outrider, seen, seed):
    result = outrider("generate", "Hello", "-n", 60, "--compare", "-t", "0.9", *(["--seed", seed] if seed else []))
    assert result.exit_code == 0
    (used,) = {request.params.seed for _, request in seen}
    assert {request.params.rule for _, request in seen} == {"coupled"}
    if seed:
        assert used == seed
        assert "no --seed" not in result.stderr
    else:
        assert f"no --seed was given: both ways draw with seed {used}" in result.stderr


def test_a_text_too_short_to_time_has_no_ratio(outrider):
    result = outrider("generate", "Hello", "-n", 1, "--compare")
    assert result.exit_code == 0
    assert "too short to tell" in result.stdout


def test_a_failure_is_an_error_and_no_comparison(outrider, monkeypatch):
    monkeypatch.setattr(scheduler, "rule", lambda name: lambda *_: 1 / 0)
    result = outrider("generate", "Hello", "--compare")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "error: division by zero\n")


def finished(*tokens, text="", seconds=1.0):
    return Completion(text, tokens, "stop", 1, (), (), 1, 0, 0, 0.0, seconds)


def test_speeds_are_medians():
    plain = tuple(finished(*range(11), seconds=s) for s in (1.0, 50.0, 1.0))
    speculative = tuple(finished(*range(11), seconds=s) for s in (0.5, 0.5, 0.01))
    comparison = compare.Comparison(plain, speculative)
    assert comparison.speeds == (10, 20)
    assert comparison.ratio == 2


@pytest.mark.parametrize(
    ("other", "place"),
    [((1, 2, 3), None), ((1, 9, 3), 1), ((1, 2), 2), ((1, 2, 3, 4), 3), ((), 0)],
)
def test_the_first_difference_is_found_in_any_round(other, place):
    same = finished(1, 2, 3)
    for plain, speculative in (((same, same), (same, finished(*other))), ((same, finished(*other)), (same, same))):
        assert compare.Comparison(plain, speculative).difference == place


def test_the_same_tokens_with_another_text_are_a_difference():
    assert compare.Comparison((finished(1, text="a"),), (finished(1, text="b"),)).difference == 1
