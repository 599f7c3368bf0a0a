"""The sampling rules once more, as plainly as they can be said: the oracle for `outrider.sampling`, sharing no code.

Each is a line or two over the whole vocabulary, in double precision, and slow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.sampling import SamplingParams
from outrider.types import DoubleArray, FloatArray


def law(logits: FloatArray, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> DoubleArray:
    """Probabilities of the token after prompt and output; float64, [vocabulary]. logits: [vocabulary].

    The order is that of `SamplingParams`; the temperature must be above 0. Masks and min_tokens are not looked at.
    """
    z = logits.astype(np.float64)
    for token, bias in params.logit_bias.items():
        z[token] += bias
    for token in {*prompt, *output}:
        z[token] *= params.repetition_penalty if z[token] < 0 else 1 / params.repetition_penalty
    for token in set(output):
        z[token] -= params.presence_penalty + params.frequency_penalty * list(output).count(token)
    z /= params.temperature
    p: DoubleArray = np.exp(z - z.max())
    ranked = np.argsort(-p, kind="stable")  # the lowest id first on ties
    if params.top_k:
        p[ranked[params.top_k :]] = 0
    p /= p.sum()
    before = p[ranked].cumsum() - p[ranked]  # probability of the tokens ranked higher
    p[ranked[before >= params.top_p]] = 0
    p[p < params.min_p * p.max()] = 0
    p /= p.sum()
    return p
