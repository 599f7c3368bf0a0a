"""Log-probabilities under the raw target, before any sampling rule."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from outrider.sampling.distribution import greedy_token
from outrider.types import DoubleArray, FloatArray


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural log-probabilities under the raw target: of the chosen token, and of the most probable ones."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


def log_softmax(logits: FloatArray) -> DoubleArray:
    """Log-probabilities of a row of raw logits; float64, [vocabulary]. Raises NumericError."""
    shifted = logits.astype(np.float64) - logits[greedy_token(logits)]
    result: DoubleArray = shifted - math.log(np.exp(shifted).sum())
    return result


def logprobs(logits: FloatArray, token: int, n: int) -> Logprobs:
    """Log-probability of `token` and of the n most probable tokens, in descending order (lowest id on ties)."""
    values = log_softmax(logits)
    if n == 0:
        return Logprobs(float(values[token]))
    n = min(n, len(logits))
    near = np.flatnonzero(logits >= np.partition(logits, -n)[-n])  # ascending ids, all that tie with the n-th
    best = near[np.argsort(-logits[near], kind="stable")[:n]]
    return Logprobs(float(values[token]), tuple((int(i), float(values[i])) for i in best))
