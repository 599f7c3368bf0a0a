"""Coupled acceptance (Daliri et al. 2024, arXiv 2408.07978): target and drafter draw with the same noise.

The target draws every token by itself, with noise keyed by the output position alone; a drafted token stands while it
equals that draw. The same seed thus gives the same text with any drafter, any number of drafted tokens, or none.
"""

from __future__ import annotations

import numpy as np

from outrider.randomness import Noise, Purpose
from outrider.sampling import Distribution, SamplingParams, distribution
from outrider.types import FloatArray, Outcome, Proposal
from outrider.verify.base import follow


def draw_coupled(law: Distribution, noise: Noise) -> int:
    """The token that `law` draws at the noise's output position: argmin(E_i / p_i), E_i ~ Exp(1) per token id.

    The same as argmax(log p_i + Gumbel noise), so a drafter whose law is close to the target's mostly draws the
    target's token: with probability at least (1 - TV) / (1 + TV) at total variation distance TV.
    """
    uniforms = noise.uniforms(Purpose.TARGET, law.ids)
    # Logarithms only where they can win, which is exact: E = -log(u) >= 1 - u, and one token gives an upper bound.
    likely = int(law.p.argmax())
    bound = -np.log(uniforms[likely]) / law.p[likely] * (1 + 1e-9)
    near = np.flatnonzero(1 - uniforms <= bound * law.p)
    return int(law.ids[near[np.argmin(-np.log(uniforms[near]) / law.p[near])]])


def verify(logits: FloatArray, proposal: Proposal, params: SamplingParams, noise: Noise) -> Outcome:
    """The text that plain decoding draws with the same seed. See `Verify` for the arguments."""
    return follow(
        proposal, lambda node, depth: draw_coupled(distribution(logits[node + 1], params), noise.ahead(depth))
    )
