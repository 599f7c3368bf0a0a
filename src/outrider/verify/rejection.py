"""Speculative sampling (Leviathan et al. 2023, arXiv 2211.17192, Algorithm 1), for chains and trees.

Siblings are tried in order, each against what its elder siblings left of the target's law (recursive rejection, as in
SpecInfer, Miao et al. 2023, arXiv 2305.09781, Algorithm 2).
"""

from __future__ import annotations

import math

import numpy as np

from outrider.randomness import Noise, Purpose
from outrider.sampling import Distribution, History, SamplingParams
from outrider.types import ROOT, DoubleArray, FloatArray, Outcome, Proposal
from outrider.verify.base import laws, undrafted


def verify(
    logits: FloatArray,
    proposal: Proposal,
    params: SamplingParams,
    noise: Noise,
    history: History,
    maxima: FloatArray | None = None,
) -> Outcome:
    """A text with the target's law, if each node was drawn from its q, or chosen without chance (q None).

    A sibling drawn without replacement has as q the law without its elder siblings. See `Verify` for the arguments.
    """
    law_after = laws(logits, proposal, params, history, maxima)
    path: list[int] = []
    node = ROOT
    while True:
        law: Distribution | None = None  # what elder siblings left of the target's; None: nothing was drafted so far
        here = noise.ahead(len(path))
        for sibling, child in enumerate(proposal.children(node)):
            token, q = proposal.tokens[child], proposal.q[child]
            if not could_draw(q, token, logits.shape[1]):
                continue  # a broken drafter: the node counts as not proposed
            law = law or law_after(node)
            likelihood = 1.0 if q is None else float(q[token])
            if here.uniform(Purpose.ACCEPT, sibling) * likelihood < law.probability(token):  # min(1, p / q)
                break
            law = residual(law, token, q)
        else:
            if law is None:
                return undrafted(path, logits, proposal, params, noise, history, maxima)
            return Outcome(tuple(path), law.draw(here.uniform(Purpose.RESIDUAL)))
        path.append(child)
        node = child


def residual(law: Distribution, token: int, q: DoubleArray | None, scale: float = 1.0) -> Distribution:
    """norm(max(0, scale x p - q)), the law after `token`, drawn from q, was refused; q None: p without the token.

    Where nothing is left, p = q up to rounding, a refusal has probability 0, and p itself is as good an answer.
    """
    if q is None:
        return _without(law, token)
    weights = _excess(law, q, scale)
    left = weights > 0
    if not left.any():
        return law
    weights = weights[left]
    return Distribution(law.ids[left], weights / weights.sum())


def excess(law: Distribution, token: int, q: DoubleArray | None, scale: float) -> float:
    """The sum of max(0, scale x p - q) over all tokens, for a scale of at most 1; q None: one-hot at `token`."""
    return scale * (1 - law.probability(token)) if q is None else float(_excess(law, q, scale).sum())


def _excess(law: Distribution, q: DoubleArray, scale: float) -> DoubleArray:
    """max(0, scale x p - q) of each of the law's ids."""
    p = law.p * scale
    return np.maximum(p - (q if len(q) == len(p) else q[law.ids]), 0.0)


def _without(law: Distribution, token: int) -> Distribution:
    """The law, given that it is another token; the law itself where none is left."""
    if law.probability(token) == 0 or len(law.ids) == 1:
        return law
    left = np.ones(len(law.ids), bool)
    left[law.ids.searchsorted(token)] = False
    weights = law.weights[left]
    return Distribution(law.ids[left], weights, float(weights.sum(dtype=np.float64)))


def could_draw(q: DoubleArray | None, token: int, vocabulary: int) -> bool:
    """Whether q is a law over the vocabulary that can give the token; None, a token without chance, is."""
    return q is None or (
        q.shape == (vocabulary,)
        and bool(q[token] > 0)
        and bool(q.min() >= 0)
        and math.isclose(q.sum(dtype=np.float64), 1.0, abs_tol=1e-6)
    )
