"""What a request asks of sampling, and the law of a token that follows from it and the target's logits.

`adjusted(row, ...)` applies bias, masks and penalties, `distribution(row, params)` temperature and truncations: in that
order they give the law of the next token. `logprobs` describes the raw target, before any of it.
"""

from __future__ import annotations

from outrider.sampling.adjust import History, adjusted, allowed_mask, changed, check_ids, check_possible
from outrider.sampling.distribution import (
    Distribution,
    distribution,
    draw_coupled,
    greedy_token,
    likeliest,
    maxima_after,
)
from outrider.sampling.logprobs import Logprobs, log_softmax, logprobs
from outrider.sampling.params import Rule, SamplingParams

__all__ = [
    "Distribution",
    "History",
    "Logprobs",
    "Rule",
    "SamplingParams",
    "adjusted",
    "allowed_mask",
    "changed",
    "check_ids",
    "check_possible",
    "distribution",
    "draw_coupled",
    "greedy_token",
    "likeliest",
    "log_softmax",
    "logprobs",
    "maxima_after",
]
