"""Coupled acceptance (Daliri et al. 2024, arXiv 2408.07978): target and drafter draw with the same noise.

The target draws every token by itself, with noise keyed by the output position alone; a drafted token stands while it
equals that draw. The same seed thus gives the same text with any drafter, any number of drafted tokens, or none. A
drafter that draws with `Distribution.draw_coupled` and the noise it is given (`DraftRequest.noise`) is mostly right.
"""

from __future__ import annotations

from outrider.randomness import Noise
from outrider.sampling import History, SamplingParams, draw_coupled
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
    """The text that plain decoding draws with the same seed. See `Verify` for the arguments."""
    row = rows(logits, proposal, params, history, maxima)

    def draw(node: int, depth: int) -> int:
        values, largest = row(node)
        return draw_coupled(values, params, noise.ahead(depth), largest)

    return follow(proposal, draw)
