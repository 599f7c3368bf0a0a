"""The native part of sampling against the same in NumPy, on rows of every size, with ties, edges and impossible tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.kernels import _sampling
from outrider.randomness import Noise, Purpose
from outrider.sampling import Distribution, SamplingParams, distribution, draw_coupled
from outrider.types import DoubleArray, FloatArray

SIZES = [1, 2, 7, 31, 32, 33, 64, 500, 511, 513, 5000]


def reference(logits: FloatArray, params: SamplingParams) -> DoubleArray:
    """The law of a row as a dense vector, in NumPy."""
    scores = logits.astype(np.float64)
    order = np.lexsort((np.arange(len(scores)), -scores))
    if params.top_k:
        order = order[: params.top_k]
    weights = np.exp((scores[order] - scores.max()) / params.temperature)
    if params.top_p < 1:
        count = int((weights.cumsum() / weights.sum()).searchsorted(params.top_p * (1 - 1e-12))) + 1
        order, weights = order[:count], weights[:count]
    kept = weights >= max(params.min_p, np.exp(-87.3))
    p = np.zeros(len(scores))
    p[order[kept]] = weights[kept] / weights[kept].sum()
    return p


def picked(law: Distribution, uniform: float) -> int:
    """The inverse of the cumulative distribution, in NumPy."""
    return int(law.ids[min(int((law.p.cumsum() / law.p.sum()).searchsorted(uniform, side="right")), len(law.ids) - 1)])


def raced(law: Distribution, noise: Noise) -> int:
    """argmin(E / p), in NumPy."""
    return int(law.ids[np.argmin(noise.exponentials(Purpose.TARGET, law.ids) / law.p)])


def row(seed: int, size: int, spread: float, levels: int | None) -> FloatArray:
    """Random logits; with `levels`, so many different ones, so that there are ties."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, size) if levels is None else spread * rng.integers(0, levels, size) / levels
    logits[rng.random(size) < 0.05] = -np.inf
    logits[rng.integers(size)] = spread
    return logits.astype(np.float32)


def at_an_edge(p: DoubleArray, params: SamplingParams) -> bool:
    """Whether rounding could decide which tokens are kept."""
    ranked = np.sort(p)[::-1]
    near_p = np.abs(ranked.cumsum() - params.top_p).min() < 1e-5 and params.top_p < 1
    return bool(near_p or (np.abs(ranked / ranked[0] - params.min_p).min() < 1e-5 and params.min_p > 0))


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(SIZES),
    st.sampled_from([0.01, 1.0, 4.0, 30.0]),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([0.1, 1.0, 3.0]),
    st.sampled_from([0, 1, 3, 40, 2000]),
    st.sampled_from([0.05, 0.633, 0.9517, 0.99999, 1.0]),
    st.sampled_from([0.0, 0.0533, 0.97]),
)
def test_laws_are_those_of_numpy(
    seed: int,
    size: int,
    spread: float,
    levels: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
) -> None:
    logits = row(seed, size, spread, levels)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    without_cuts = SamplingParams(temperature=temperature, top_k=top_k)
    if at_an_edge(reference(logits, without_cuts), params):
        return
    law = distribution(logits, params)
    np.testing.assert_allclose(law.dense(size), reference(logits, params), rtol=2e-5, atol=1e-30)
    assert (law.weights > 0).all()
    assert (np.diff(law.ids) > 0).all()
    assert law.total == pytest.approx(law.weights.sum(dtype=np.float64))


def test_the_reference_is_not_blind() -> None:
    logits = row(3, 500, 2.0, None)
    found = distribution(logits, SamplingParams(temperature=1.0, top_p=0.9)).dense(500)
    assert not np.allclose(found, reference(logits, SamplingParams(temperature=1.0, top_p=0.91)), rtol=2e-5)
    assert not np.allclose(found, reference(logits, SamplingParams(temperature=1.001, top_p=0.9)), rtol=2e-5)


@pytest.mark.parametrize("size", SIZES)
def test_draws_are_those_of_numpy(size: int) -> None:
    law = distribution(row(1, size, 3.0, None), SamplingParams(temperature=1.0))
    for seed, uniform in enumerate(np.random.default_rng(0).random(300)):
        assert law.draw(uniform) == picked(law, uniform)
        assert law.draw_coupled(Noise(seed, 0, 2)) == raced(law, Noise(seed, 0, 2))
    assert [law.draw(u) for u in (1e-300, 1 - 2**-53)] == [law.ids[0], law.ids[-1]]


@pytest.mark.parametrize("spread", [0.01, 3.0, 30.0])
def test_races_over_a_whole_vocabulary_and_over_parts_of_it_are_those_of_numpy(spread: float) -> None:
    logits = row(2, 5000, spread, None)
    laws = [distribution(logits, SamplingParams(temperature=1.0, top_k=k)) for k in (0, 3, 700, 4999)]
    for seed in range(100):
        for law in laws:
            assert law.draw_coupled(Noise(seed)) == raced(law, Noise(seed))
    assert any(raced(laws[0], Noise(seed)) != raced(laws[0], Noise(seed + 1)) for seed in range(100))


def test_a_race_is_won_by_the_first_of_twins_and_never_by_the_impossible() -> None:
    ids = np.array([5, 5, 9], np.int32)
    assert Distribution(ids, np.array([1, 1, 1e-30])).draw_coupled(Noise(1)) == 5
    for seed in range(200):
        assert Distribution(np.arange(3, dtype=np.int32), np.array([0, 1, 0])).draw_coupled(Noise(seed)) == 1


def test_a_law_of_the_whole_vocabulary_shares_its_ids_but_lets_nobody_write_them() -> None:
    law = distribution(np.zeros(10, np.float32), SamplingParams(temperature=1.0))
    with pytest.raises(ValueError, match="read-only"):
        law.ids[0] = 3


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999, 1 - 1e-9])
@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("levels", [None, 7])
def test_the_nucleus_of_a_large_vocabulary_is_that_of_numpy(spread: float, levels: int | None, top_p: float) -> None:
    """So large that a sample tells about where it ends; where laws are peaked, or full of ties, the sample is wrong."""
    params = SamplingParams(temperature=1.0, top_p=top_p)
    compared = 0
    for seed in range(12):
        logits = row(seed, 20_000 + seed, spread, levels)
        if seed % 3 == 0:
            logits[seed] += 12  # one token that holds nearly all, and is in no sample or in all
        if at_an_edge(reference(logits, SamplingParams(temperature=1.0)), params):
            continue
        compared += 1
        found = distribution(logits, params).dense(len(logits))
        np.testing.assert_allclose(found, reference(logits, params), rtol=2e-5, atol=1e-30)
    assert compared or levels or top_p > 0.99


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 7, 32, 33, 500, 5000, 20_000]),
    st.sampled_from([0.01, 1.0, 4.0, 30.0]),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([1e-6, 0.1, 1.0, 3.0, 1e6]),
    st.sampled_from([0.05, 0.633, 0.9517, 0.99999, 1.0]),
    st.sampled_from([{}, {"top_k": 5}, {"min_p": 0.05}]),
)
def test_a_coupled_draw_is_that_of_the_law_though_it_is_not_computed(
    seed: int, size: int, spread: float, levels: int | None, temperature: float, top_p: float, others: dict[str, float]
) -> None:
    logits = row(seed, size, spread, levels)
    params = SamplingParams(temperature=temperature, top_p=top_p, **others)  # type: ignore[arg-type]
    law, maxima = distribution(logits, params), _sampling.maxima(logits)
    for choice in range(20):
        noise = Noise(seed, choice)
        drawn = law.draw_coupled(noise)
        assert drawn == raced(law, noise)
        assert draw_coupled(logits, params, noise) == draw_coupled(logits, params, noise, maxima) == drawn


def test_coupled_draws_are_not_always_the_most_probable_token() -> None:
    logits = row(5, 5000, 1.0, None)
    drawn = {draw_coupled(logits, SamplingParams(temperature=1.0, top_p=0.9), Noise(seed)) for seed in range(50)}
    assert len(drawn) > 40


@pytest.mark.parametrize("size", SIZES)
def test_maxima_are_those_of_numpy_and_none_hides_what_is_no_number(size: int) -> None:
    logits = row(1, size, 3.0, None)
    blocks = [logits[start : start + 32] for start in range(0, size, 32)]
    assert _sampling.maxima(logits).tolist() == [block.max() for block in blocks]
    for place in {0, size // 2, size - 1}:
        broken = logits.copy()
        broken[place] = np.nan
        found = _sampling.maxima(broken)
        assert np.isnan(found).nonzero()[0].tolist() == [place // 32]
        assert np.delete(found, place // 32).tolist() == np.delete([b.max() for b in blocks], place // 32).tolist()


def test_maxima_of_another_row_are_refused() -> None:
    with pytest.raises(ValueError, match="not one per 32"):
        _sampling.argmax(np.zeros(65, np.float32), np.zeros(2, np.float32))
