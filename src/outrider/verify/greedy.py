"""Greedy acceptance: a drafted token stands while it is the target's argmax (Leviathan et al. 2023, section 2.3)."""

from __future__ import annotations

from outrider.randomness import Noise
from outrider.sampling import History, SamplingParams, greedy_token
from outrider.types import FloatArray, Outcome, Proposal
from outrider.verify.base import follow, rows


def verify(
    logits: FloatArray,
    proposal: Proposal,
    params: SamplingParams,
    noise: Noise,
    history: History,
    maxima: FloatArray | None = None,
) -> Outcome:
    """The text of plain greedy decoding; the lowest id wins a tie. See `Verify` for the arguments."""
    row = rows(logits, proposal, params, history, maxima)
    return follow(proposal, lambda node, depth: greedy_token(*row(node)))
