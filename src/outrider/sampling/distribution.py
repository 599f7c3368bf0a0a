"""The law of a token: temperature, top-k, top-p and min-p, and drawing from what they leave. The hot part is native.

`tests/test_sampling_native.py` holds the same in NumPy, the oracle of `native/sampling.cpp`.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from outrider.errors import NumericError
from outrider.kernels import _sampling
from outrider.randomness import Noise, Purpose
from outrider.sampling.params import SamplingParams
from outrider.types import DoubleArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Distribution:
    """The law of a token: the ids that can come, ascending, and their weights, all above 0, of sum `total`."""

    ids: IntArray
    weights: FloatArray | DoubleArray
    total: float = 1.0

    @property
    def p(self) -> DoubleArray:
        """The probabilities of `ids`; float64."""
        return self.weights.astype(np.float64) / self.total

    def probability(self, token: int) -> float:
        """Probability of a token; 0 if it cannot come."""
        place = int(self.ids.searchsorted(token))
        return float(self.weights[place]) / self.total if place < len(self.ids) and self.ids[place] == token else 0.0

    def draw(self, uniform: float) -> int:
        """The token that a number in (0, 1) picks: the inverse of the cumulative distribution."""
        return int(self.ids[_sampling.pick(self.weights, self.total, uniform)])

    def draw_coupled(self, noise: Noise, purpose: Purpose = Purpose.TARGET) -> int:
        """The token that the law draws at the noise's output position: argmin(E_i / p_i), E_i ~ Exp(1) per token id.

        purpose  what it is drawn for; TARGET: the draw that the target's own law makes with the same noise.

        The same as argmax(log p_i + Gumbel noise). A drafter that draws so from its own law, with the same noise,
        draws the target's token with probability at least (1 - TV) / (1 + TV), at total variation distance TV between
        the two (Daliri et al. 2024, arXiv 2408.07978, Theorem 1).
        """
        return _sampling.race(self.ids, self.weights, *noise.keys(purpose))

    def dense(self, vocabulary: int) -> DoubleArray:
        """The probabilities of all tokens; float64, [vocabulary]."""
        p = np.zeros(vocabulary)
        p[self.ids] = self.p
        return p


def greedy_token(logits: FloatArray, maxima: FloatArray | None = None) -> int:
    """The most probable token of a row ([vocabulary]), the lowest id on ties. Raises NumericError.

    maxima  the largest of each 32 logits, if they are at hand: then few logits are looked at.
    """
    token = int(logits.argmax()) if maxima is None else _sampling.argmax(logits, maxima)
    if not math.isfinite(logits[token]):  # argmax takes NaN for the largest
        raise NumericError(f"logits: the largest is {logits[token]} (token {token}); it must be a finite number")
    return token


def maxima_after(logits: FloatArray, maxima: FloatArray, ids: Collection[int]) -> FloatArray:
    """The largest of each 32 logits, known from before these tokens' logits changed; a new array."""
    result: FloatArray = _sampling.maxima_after(logits, maxima, np.fromiter(ids, np.int32, len(ids)))
    return result


def likeliest(logits: FloatArray) -> tuple[int, float]:
    """The token of `greedy_token`, and its probability at temperature 1. Raises NumericError."""
    token, chance = _sampling.likeliest(logits)
    return (token, chance) if chance else (greedy_token(logits), chance)  # which raises


def distribution(logits: FloatArray, params: SamplingParams, maxima: FloatArray | None = None) -> Distribution:
    """The law of the next token after temperature, top-k, top-p and min-p, each on what the one before left.

    logits: float32, [vocabulary], after `adjusted`; left as they are. maxima: as for `greedy_token`. Ties at an edge
    keep the lowest ids. -inf means impossible; raises NumericError for NaN, +inf, or where nothing is possible.
    """
    if maxima is None:
        maxima = _sampling.maxima(logits)
    top = greedy_token(logits, maxima)
    if params.temperature == 0:
        return Distribution(np.array([top], np.int32), np.ones(1, np.float32))
    top_k = params.top_k if params.top_k < len(logits) else 0  # all; and native integers end somewhere
    ids, weights, total = _sampling.law(
        logits, maxima, logits[top], params.temperature, top_k, params.top_p, params.min_p
    )
    return Distribution(_all_ids(len(logits)) if ids is None else ids, weights, total)


def draw_coupled(
    logits: FloatArray,
    params: SamplingParams,
    noise: Noise,
    maxima: FloatArray | None = None,
    purpose: Purpose = Purpose.TARGET,
) -> int:
    """The token that the law of `distribution` draws with `Distribution.draw_coupled`, if possible without that law.

    Without top-k and min-p, whoever wins among all tokens wins among those that top-p keeps, if it is one of them.
    """
    if params.temperature == 0 or params.top_k or params.min_p:
        return distribution(logits, params, maxima).draw_coupled(noise, purpose)
    if maxima is None:
        maxima = _sampling.maxima(logits)
    peak = logits[greedy_token(logits, maxima)]
    keys = noise.keys(purpose)
    return _sampling.race_all(logits, maxima, peak, params.temperature, params.top_p, *keys)


@lru_cache(maxsize=8)
def _all_ids(vocabulary: int) -> IntArray:
    ids = np.arange(vocabulary, dtype=np.int32)
    ids.flags.writeable = False  # it is shared
    return ids
