"""Sampling parameters are honoured or refused; distributions follow the documented order exactly."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import NumericError, RequestError
from outrider.sampling import Distribution, SamplingParams, distribution, greedy_token, log_softmax, logprobs
from outrider.types import DoubleArray, FloatArray

LOGITS = np.log(np.array([0.1, 0.4, 0.3, 0.15, 0.05])).astype(np.float32)


def law(logits: Any, **params: Any) -> dict[int, float]:
    """The distribution as a plain dictionary, at temperature 1 unless told."""
    found = distribution(np.asarray(logits, np.float32), SamplingParams(**{"temperature": 1.0, **params}))
    return dict(zip(found.ids.tolist(), found.p.tolist(), strict=True))


def literal(logits: FloatArray, params: SamplingParams) -> DoubleArray:
    """The documented order, word for word, over one sorted list: the oracle."""
    values = logits.tolist()
    peak = max(values)
    p = [math.exp((x - peak) / params.temperature) for x in values]
    ranked = sorted(range(len(p)), key=lambda i: (-values[i], i))
    if params.top_k:
        ranked = ranked[: params.top_k]
    total = sum(p[i] for i in ranked)
    sums = list(itertools.accumulate(p[i] / total for i in ranked))
    if params.top_p < 1:
        ranked = ranked[: next((n for n, s in enumerate(sums, 1) if s >= params.top_p), len(ranked))]
    ranked = [i for i in ranked if p[i] >= params.min_p * p[ranked[0]]]
    result = np.zeros(len(p))
    result[ranked] = [p[i] for i in ranked]
    result /= result.sum()
    return result


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-0.1, math.nan, math.inf, 1e-9, 1e7, "1", True, None]),
        ("top_k", [-1, 2.0, True, None]),
        ("top_p", [0.0, -0.5, 1.01, math.nan, "0.9", False]),
        ("min_p", [-0.1, 1.5, math.nan, True]),
        ("seed", [1.5, "1", True, 2**63, -(2**63) - 1]),
        ("max_tokens", [0, -1, 1.5, True]),
        ("stop", ["END", ("",), ("a", 1), None, ("a", "\udcff"), ("x\ud800",)]),
        ("stop_token_ids", [3, (-1,), (1.0,), (True,), "3"]),
        ("ignore_eos", [1, None]),
        ("logprobs", [-1, 1.0, True]),
        ("acceptance", ["coupled", "rejection", "block", ""]),  # at temperature 0
        ("logit_bias", [{-1: 1.0}, {1.0: 1.0}, {3: math.nan}, {3: 101}, {3: "1"}, {True: 1.0}, 5, ((3, 1.0),)]),
        ("allowed_token_ids", [(), (-1,), (True,), 3, "12"]),
        ("banned_token_ids", [(-1,), (1.5,), 3, None]),
        ("min_tokens", [-1, 1.0, True, None]),
        ("repetition_penalty", [0, -1.2, math.nan, math.inf, "1", True]),
        ("presence_penalty", [-2.1, math.nan, math.inf, None, False]),
        ("frequency_penalty", [2.5, math.nan, "0"]),
    ],
)
def test_a_value_that_cannot_be_honoured_is_refused_by_name(field: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(RequestError) as refusal:
            SamplingParams(**{field: value})  # type: ignore[arg-type]
        assert f"{field}={value!r}" in str(refusal.value)
        assert "allowed: " in str(refusal.value)


def test_greedy_is_refused_above_temperature_0() -> None:
    with pytest.raises(RequestError, match=r"coupled or rejection or block at temperature 0\.7"):
        SamplingParams(temperature=0.7, acceptance="greedy")


def test_lists_become_tuples() -> None:
    params = SamplingParams(stop=["a"], stop_token_ids=[3])  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids) == (("a",), (3,))
    assert hash(params) == hash(SamplingParams(stop=("a",), stop_token_ids=(3,)))


def test_a_bias_is_copied_and_compared_but_not_hashed() -> None:
    bias = {3: 1.5}
    params = SamplingParams(logit_bias=bias)
    bias[3] = 7.0
    assert params == SamplingParams(logit_bias={3: 1.5}) != SamplingParams()
    assert hash(params) == hash(SamplingParams(logit_bias={3: 1.5}))
    assert replace(params, seed=1).logit_bias == {3: 1.5}


@pytest.mark.parametrize(
    ("field", "params"),
    [
        ("min_tokens", {"min_tokens": 5, "max_tokens": 4}),
        ("allowed_token_ids", {"allowed_token_ids": (3, 4), "banned_token_ids": (4, 3, 2)}),
    ],
)
def test_values_that_contradict_each_other_are_refused(field: str, params: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=field):
        SamplingParams(**params)


def test_the_edges_of_the_allowed_ranges_are_allowed() -> None:
    SamplingParams(logit_bias={0: -100, 1: 100.0}, min_tokens=3, max_tokens=3, repetition_penalty=0.01)
    SamplingParams(presence_penalty=-2, frequency_penalty=2, allowed_token_ids=(0,), banned_token_ids=(1,))
    SamplingParams(temperature=1, top_k=0, top_p=1, min_p=1, seed=-(2**63), max_tokens=1, logprobs=0)


@pytest.mark.parametrize(
    ("params", "rule"),
    [
        ({}, "greedy"),
        ({"seed": 3}, "greedy"),
        ({"acceptance": "greedy"}, "greedy"),
        ({"temperature": 1.0}, "block"),
        ({"temperature": 1.0, "seed": 0}, "coupled"),
        ({"temperature": 1.0, "seed": 0, "acceptance": "rejection"}, "rejection"),
        ({"temperature": 1.0, "acceptance": "coupled"}, "coupled"),
        ({"temperature": 1.0, "seed": 0, "acceptance": "block"}, "block"),
    ],
)
def test_the_acceptance_rule_in_force(params: dict[str, Any], rule: str) -> None:
    assert SamplingParams(**params).rule == rule


def test_temperature_0_is_one_hot_at_the_lowest_best_id() -> None:
    assert law([0, 2, 2, 1], temperature=0.0, top_p=0.9) == {1: 1.0}


def test_temperature_divides_the_logits() -> None:
    p = law(LOGITS, temperature=0.5)
    squares = np.array([0.1, 0.4, 0.3, 0.15, 0.05]) ** 2
    assert list(p.values()) == pytest.approx(squares / squares.sum())


@pytest.mark.parametrize("temperature", [1e-6, 1e6])
def test_extreme_temperatures_work(temperature: float) -> None:
    p = law([80, 3e38, -3e38, -math.inf], temperature=temperature)
    assert 3 not in p
    assert sum(p.values()) == pytest.approx(1)
    assert law([1, 1.001, -5], temperature=1e-6) == {1: 1.0}


def test_top_k_keeps_the_most_probable_and_the_lowest_ids_on_ties() -> None:
    assert law(LOGITS, top_k=2) == {1: pytest.approx(4 / 7), 2: pytest.approx(3 / 7)}
    assert set(law([1, 0, 1, 1, 2], top_k=3)) == {0, 2, 4}
    assert len(law(LOGITS, top_k=99)) == 5
    assert law(LOGITS, top_k=10**30) == law(LOGITS, top_k=0)


def test_top_p_keeps_the_fewest_that_reach_it_and_the_lowest_ids_on_ties() -> None:
    assert set(law(LOGITS, top_p=0.6)) == {1, 2}
    assert set(law(LOGITS, top_p=0.75)) == {1, 2, 3}
    assert set(law(LOGITS, top_p=1e-9)) == {1}
    assert set(law([0, 0, 0, 0], top_p=0.5)) == {0, 1}


def test_min_p_is_relative_to_the_most_probable() -> None:
    assert set(law(LOGITS, min_p=0.5)) == {1, 2}
    assert set(law([0, 1, 1], min_p=1.0)) == {1, 2}


def test_the_order_is_temperature_top_k_top_p_min_p() -> None:
    # Of the best two (4/7, 3/7) top_p 0.55 keeps one; of all five (0.4, 0.3, ...) it would keep two.
    assert set(law(LOGITS, top_k=2, top_p=0.55)) == {1}
    # At temperature 0.5 the first has 0.49 of the mass; at 1 it has 0.4.
    assert set(law(LOGITS, temperature=0.5, top_p=0.45)) == {1}


@given(
    st.lists(st.sampled_from([-math.inf, -9.0, -1.0, 0.0, 0.3, 0.3, 2.0, 2.5]), min_size=1, max_size=30),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.integers(0, 31),
    st.sampled_from([0.123, 0.777, 0.999, 1.0]),
    st.sampled_from([0.0, 0.017, 0.4]),
)
def test_it_equals_the_literal_reading(
    values: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = np.array(values, np.float32)
    if max(values) == -math.inf:
        return
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    found = distribution(logits, params)
    np.testing.assert_allclose(found.dense(len(values)), literal(logits, params), rtol=1e-5)
    assert (found.p > 0).all()
    assert found.p.sum() == pytest.approx(1)
    assert (np.diff(found.ids) > 0).all()


def test_the_literal_reading_is_not_blind() -> None:
    wrong = distribution(LOGITS, SamplingParams(temperature=1.0, top_p=0.55)).dense(5)
    assert not np.allclose(wrong, literal(LOGITS, SamplingParams(temperature=1.0, top_k=2, top_p=0.55)))


def test_a_wide_nucleus_over_a_large_vocabulary() -> None:
    logits = np.random.default_rng(0).normal(0, 0.01, 20_000).astype(np.float32)
    params = SamplingParams(temperature=1.0, top_p=0.9)
    np.testing.assert_array_equal(distribution(logits, params).dense(20_000) > 0, literal(logits, params) > 0)
    narrow = np.concatenate([logits, [30.0]]).astype(np.float32)
    assert distribution(narrow, params).ids.tolist() == [20_000]


def test_the_bits_do_not_depend_on_where_the_row_lies_in_memory() -> None:
    row = np.random.default_rng(1).normal(0, 3, 1001).astype(np.float32)
    for params in (SamplingParams(temperature=0.7), SamplingParams(temperature=0.7, top_k=50, top_p=0.9)):
        expected = distribution(row, params)
        for offset in range(1, 17):
            moved = np.concatenate([np.zeros(offset, np.float32), row])[offset:]
            found = distribution(moved, params)
            assert (found.ids == expected.ids).all()
            assert (found.p == expected.p).all()


def test_logits_are_not_modified() -> None:  # B10
    logits = LOGITS.copy()
    logits.flags.writeable = False
    law(logits, temperature=0.5, top_k=3, top_p=0.8, min_p=0.1)
    logprobs(logits, 1, 3)


@pytest.mark.parametrize("logits", [[0, math.nan], [math.inf, 0], [-math.inf, -math.inf], [math.nan]])
def test_what_is_not_a_number_is_an_error(logits: list[float]) -> None:
    row = np.array(logits, np.float32)
    for params in (SamplingParams(), SamplingParams(temperature=1.0)):
        with pytest.raises(NumericError, match="finite"):
            distribution(row, params)
    with pytest.raises(NumericError):
        greedy_token(row)
    with pytest.raises(NumericError):
        log_softmax(row)


def test_impossible_tokens_are_not_in_the_law() -> None:
    assert law([-math.inf, 0, -math.inf, 0]) == {1: 0.5, 3: 0.5}
    assert law([-math.inf, 0, -math.inf], top_k=2) == {1: 1.0}


def test_a_vocabulary_of_one() -> None:
    assert law([3]) == law([3], top_k=1, top_p=0.5, min_p=0.5) == {0: 1.0}


def test_probability_of_any_token() -> None:
    found = Distribution(np.array([2, 5]), np.array([0.25, 0.75]))
    assert [found.probability(i) for i in (0, 2, 3, 5, 9)] == [0, 0.25, 0, 0.75, 0]


def test_draw_inverts_the_cumulative_distribution() -> None:
    found = Distribution(np.array([2, 5, 7]), np.array([0.25, 0.5, 0.25]))
    assert [found.draw(u) for u in (1e-17, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53)] == [2, 2, 5, 5, 7, 7]
    assert Distribution(np.array([4]), np.ones(1)).draw(0.5) == 4


def test_log_softmax_is_of_the_raw_logits() -> None:
    np.testing.assert_allclose(np.exp(log_softmax(LOGITS)), [0.1, 0.4, 0.3, 0.15, 0.05], rtol=1e-6)
    assert log_softmax(np.array([0, -np.inf], np.float32)).tolist() == [0, -math.inf]
    assert np.exp(log_softmax(np.full(100, 1e30, np.float32))).sum() == pytest.approx(1)


def test_logprobs_report_the_chosen_token_and_the_n_best() -> None:
    found = logprobs(LOGITS, 0, 2)
    assert found.chosen == pytest.approx(math.log(0.1))
    assert dict(found.top) == pytest.approx({1: math.log(0.4), 2: math.log(0.3)})
    assert logprobs(LOGITS, 0, 0).top == ()
    assert [i for i, _ in logprobs(np.array([0, 1, 1, 0], np.float32), 0, 3).top] == [1, 2, 0]
    assert len(logprobs(LOGITS, 0, 99).top) == 5
