"""Bias, masks, min_tokens and penalties: each by its definition, in the documented order, on the tokens before the row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConstraintError, NumericError, RequestError
from outrider.kernels import _sampling
from outrider.sampling import (
    History,
    SamplingParams,
    adjusted,
    allowed_mask,
    changed,
    check_possible,
    greedy_token,
    maxima_after,
)
from outrider.types import ROOT, FloatArray, Proposal
from outrider.verify.base import rows
from tests.constrained import Toy

LOGITS = np.array([2.0, -1.0, 0.5, 0.0, -3.0], np.float32)


def after(tokens: list[int], prompt_length: int = 1, drafted: tuple[int, ...] = (), **params: Any) -> list[float]:
    """LOGITS after the rules, with `tokens` committed and `drafted` on the row's path."""
    found = adjusted(LOGITS, SamplingParams(**params), History(tokens, prompt_length, stop_ids={3}), drafted)
    return [round(x, 5) for x in found.tolist()]


def literal(logits: FloatArray, params: SamplingParams, prompt: list[int], output: list[int]) -> list[float]:
    """The definitions, word for word, token by token: the oracle."""
    result = []
    for token, logit in enumerate(logits.tolist()):
        logit += params.logit_bias.get(token, 0.0)
        allowed = params.allowed_token_ids is None or token in params.allowed_token_ids
        if not allowed or token in params.banned_token_ids or (token == 3 and len(output) < params.min_tokens):
            logit = -math.inf
        if token in prompt or token in output:
            logit = logit * params.repetition_penalty if logit < 0 else logit / params.repetition_penalty
        if token in output:
            logit -= params.presence_penalty + params.frequency_penalty * output.count(token)
        result.append(logit)
    return result


def test_bias_is_added() -> None:
    assert after([0], logit_bias={1: 2.5, 4: -1}) == [2.0, 1.5, 0.5, 0.0, -4.0]


def test_repetition_counts_prompt_and_output_each_token_once() -> None:
    assert after([0, 1, 0, 0], 2, (1,), repetition_penalty=2) == [1.0, -2.0, 0.5, 0.0, -3.0]


def test_presence_and_frequency_count_the_output_only() -> None:
    assert after([0, 1, 1], 1, (2, 1), presence_penalty=0.5) == [2.0, -1.5, 0.0, 0.0, -3.0]
    assert after([0, 1, 1], 1, (2, 1), frequency_penalty=0.5) == [2.0, -2.5, 0.0, 0.0, -3.0]


def test_min_tokens_counts_committed_and_drafted_output_tokens() -> None:  # B59, B64
    assert after([0, 1], 1, (2,), min_tokens=3)[3] == -math.inf
    assert after([0, 1], 1, (2, 2), min_tokens=3)[3] == 0.0
    assert after([0, 1, 2, 2, 3], 3, (), min_tokens=3)[3] == -math.inf  # the prompt does not count


def test_only_allowed_tokens_can_come() -> None:
    mask = allowed_mask(SamplingParams(allowed_token_ids=(1, 2, 4), banned_token_ids=(4,)), 5)
    assert mask is not None
    assert mask.tolist() == [False, True, True, False, False]
    found = adjusted(LOGITS, SamplingParams(), History([0], 1, allowed=mask))
    assert found.tolist() == [-math.inf, -1.0, 0.5, -math.inf, -math.inf]
    assert allowed_mask(SamplingParams(), 5) is None


def test_equal_masks_are_one_and_nobody_can_change_it() -> None:
    values: dict[str, Any] = {"allowed_token_ids": (1, 2, 3), "banned_token_ids": (2,)}
    mask = allowed_mask(SamplingParams(**values), 5)
    assert mask is not None
    assert allowed_mask(SamplingParams(**values, seed=1), 5) is mask
    check_possible(SamplingParams(**values, min_tokens=1), 5, {3}, room=10)  # rules 3 out for itself alone
    assert mask.tolist() == [False, True, False, True, False]
    with pytest.raises(ValueError, match="read-only"):
        mask[0] = True
    for other, vocabulary in (({"banned_token_ids": (2,)}, 5), ({"allowed_token_ids": (1, 2, 3)}, 5), (values, 6)):
        assert not np.array_equal(allowed_mask(SamplingParams(**other), vocabulary), mask)  # type: ignore[arg-type]


def test_a_constraint_is_asked_about_each_rows_own_path() -> None:
    rising = Toy(lambda output: {(output[-1] if output else 0) + 1}, vocabulary=5)
    proposal = Proposal((1, 1, 2), (ROOT, ROOT, 1), "n", (1.0,) * 3, (None,) * 3)
    row = rows(np.stack([LOGITS] * 4), proposal, SamplingParams(), History([0], 1, constraint=rising))
    assert [greedy_token(*row(node)) for node in (ROOT, 0, 1, 2)] == [1, 2, 2, 3]


def test_constraint_and_allowed_tokens_hold_together_and_may_leave_nothing() -> None:
    one_or_two = Toy(lambda output: {1, 2}, vocabulary=5)
    history = History([0], 1, allowed=np.arange(5) >= 2, constraint=one_or_two)
    assert np.flatnonzero(np.isfinite(adjusted(LOGITS, SamplingParams(), history))).tolist() == [2]
    history = History([0], 1, allowed=np.arange(5) >= 3, constraint=one_or_two)
    with pytest.raises(ConstraintError, match="output token 0: the constraint leaves no token"):
        adjusted(LOGITS, SamplingParams(), history)


def test_bias_comes_before_the_penalties() -> None:
    assert after([1], logit_bias={1: 3.0}, repetition_penalty=2)[1] == 1.0  # (-1 + 3) / 2, not -1 * 2 + 3


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=9),
    st.lists(st.integers(0, 4), max_size=9),
    st.lists(st.integers(0, 4), max_size=4),
    st.fixed_dictionaries(
        {
            "logit_bias": st.dictionaries(st.integers(0, 4), st.floats(-5, 5, width=32)),
            "allowed_token_ids": st.none() | st.just((0, 1, 3)),
            "banned_token_ids": st.sampled_from([(), (1,), (2, 4)]),
            "min_tokens": st.integers(0, 9),
            "repetition_penalty": st.sampled_from([1.0, 1.25, 0.5]),
            "presence_penalty": st.sampled_from([0.0, 0.5, -1.0]),
            "frequency_penalty": st.sampled_from([0.0, 0.25, -0.5]),
        }
    ),
)
def test_it_equals_the_definitions(
    prompt: list[int], output: list[int], drafted: list[int], values: dict[str, Any]
) -> None:
    params = SamplingParams(**values)
    history = History([*prompt, *output], len(prompt), {3}, allowed_mask(params, 5))
    before = LOGITS.copy()
    found = adjusted(LOGITS, params, history, drafted)
    np.testing.assert_allclose(found, literal(LOGITS, params, prompt, output + drafted), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(LOGITS, before)


def test_the_definitions_are_not_blind() -> None:
    """Negative control: a token counted twice (B60), or not at all (B61), is seen."""
    params = SamplingParams(frequency_penalty=0.5)
    found = adjusted(LOGITS, params, History([0, 1], 1), [1])
    assert not np.allclose(found, literal(LOGITS, params, [0], [1, 1, 1]))
    assert not np.allclose(found, literal(LOGITS, params, [0], [1]))


def test_counts_follow_a_text_that_grows() -> None:
    """The engine's list grows between steps, and only what is new is counted."""
    tokens = [0, 1]
    history = History(tokens, 1)
    params = SamplingParams(frequency_penalty=0.5, repetition_penalty=2)
    for new in ([], [1], [2, 2, 0], [1]):
        tokens += new
        np.testing.assert_allclose(
            adjusted(LOGITS, params, history, [4]), literal(LOGITS, params, [0], [*tokens[1:], 4]), rtol=1e-6
        )


def test_each_node_of_a_tree_sees_its_own_path() -> None:  # B60
    #        root -> 0: token 1 -> 2: token 1      1: token 2 -> 3: token 0
    tree = Proposal((1, 2, 1, 0), (ROOT, ROOT, 0, 1), "n", (0.5,) * 4, (None,) * 4)
    params = SamplingParams(frequency_penalty=1)
    logits = np.stack([LOGITS] * 5)
    row = rows(logits, tree, params, History([4, 2], 1))
    for node, path in {ROOT: [], 0: [1], 1: [2], 2: [1, 1], 3: [2, 0]}.items():
        np.testing.assert_allclose(row(node)[0], literal(LOGITS, params, [4], [2, *path]))


def test_neutral_values_leave_the_row_alone() -> None:
    logits = np.stack([LOGITS] * 2)
    maxima = logits.max(axis=1, keepdims=True)
    row = rows(logits, Proposal.chain([1], "n"), SamplingParams(), History([1, 2], 1, {3}), maxima)
    assert all(np.shares_memory(mine, whole[1]) for mine, whole in zip(row(0), (logits, maxima), strict=True))


def test_a_row_that_was_changed_has_new_maxima_or_none() -> None:
    logits = LOGITS[np.newaxis]
    maxima = logits.max(axis=1, keepdims=True)
    row, largest = rows(logits, Proposal(), SamplingParams(presence_penalty=2), History([1, 0], 1), maxima)(ROOT)
    assert largest is not None
    assert largest.tolist() == [row.max()] == [0.5]
    masked = History([1, 2], 1, allowed=np.ones(5, bool))
    assert rows(logits, Proposal(), SamplingParams(), masked, maxima)(ROOT)[1] is None


def test_what_is_not_a_number_stays_so_under_a_mask() -> None:
    broken = LOGITS.copy()
    broken[4] = np.nan
    mask = np.array([True, True, False, False, False])
    with pytest.raises(NumericError, match="nan"):
        greedy_token(adjusted(broken, SamplingParams(), History([0], 1, allowed=mask)))


def test_where_the_model_rules_out_what_is_allowed_the_request_fails() -> None:
    mask = np.array([False, True, False, False, False])
    with pytest.raises(NumericError, match="-inf"):
        greedy_token(
            adjusted(np.where(mask, -np.inf, LOGITS).astype(np.float32), SamplingParams(), History(allowed=mask))
        )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"logit_bias": {5: 1.0}}, "logit_bias: 5 is no token id; expected 0 to 4"),
        ({"allowed_token_ids": (1, 7)}, "allowed_token_ids: 7"),
        ({"banned_token_ids": (9,)}, "banned_token_ids: 9"),
        ({"stop_token_ids": (5,)}, "stop_token_ids: 5"),
        ({"min_tokens": 11}, "min_tokens=11.* room for 10"),
        ({"banned_token_ids": (0, 1, 2, 3, 4)}, "no token can come"),
        ({"allowed_token_ids": (3,), "min_tokens": 1}, "no token can come"),
    ],
)
def test_what_the_target_cannot_honour_is_refused(params: dict[str, Any], message: str) -> None:  # B139
    with pytest.raises(RequestError, match=message):
        check_possible(SamplingParams(**params), 5, {3}, room=10)
    check_possible(SamplingParams(allowed_token_ids=(3,), logit_bias={4: 1}, min_tokens=0), 5, {3}, room=10)


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": -0.7},
        {"logit_bias": {70: 30.0, 3: -100.0}, "min_tokens": 9},
        {"repetition_penalty": 0.7, "logit_bias": {70: 30.0}, "min_tokens": 3},
    ],
)
def test_maxima_are_found_again_where_logits_have_changed(params):
    rng = np.random.default_rng(5)
    logits = rng.normal(size=100).astype(np.float32)  # the last block is not full
    params = SamplingParams(**params)
    for trial in range(50):
        tokens = rng.integers(0, 100, 6).tolist()
        history, drafted = History(tokens, 3, stop_ids={98, 99}), rng.integers(0, 100, trial % 3).tolist()
        row = adjusted(logits, params, history, drafted)
        found = maxima_after(row, _sampling.maxima(logits), changed(params, history, drafted))
        assert np.array_equal(found, _sampling.maxima(row))


def test_where_anything_may_change_nobody_says_what_does():
    assert changed(SamplingParams(), History(allowed=np.ones(8, bool))) is None
    assert changed(SamplingParams(), History([1], 1)) == set()
