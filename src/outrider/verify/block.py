"""Block verification (Sun et al. 2024, arXiv 2403.10444v3, Algorithm 2): a chain is judged as a whole.

It accepts at least as many tokens as rejection on average, and no rule that keeps the target's law accepts more. The
paper's M_b and M_s are the target's p and the drafter's q here, its gamma is the length of the chain.
"""

from __future__ import annotations

from outrider.randomness import Noise, Purpose
from outrider.sampling import Distribution, History, SamplingParams
from outrider.types import FloatArray, Outcome, Proposal
from outrider.verify import rejection
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

    The paper has no rule for trees: one that branches is left to `rejection`, which keeps the law as well. Like its
    length, the shape of a proposal must not depend on the tokens drawn. See `Verify` for the arguments.
    """
    if any(parent != node - 1 for node, parent in enumerate(proposal.parents)):
        return rejection.verify(logits, proposal, params, noise, history, maxima)
    law_after = laws(logits, proposal, params, history, maxima)
    targets: list[Distribution] = []  # p( . | X^i), i = 0, 1, ...
    shares = [1.0]  # p_i = min(p_(i-1) p(X_i) / q(X_i), 1), line 4
    for node, (token, q) in enumerate(zip(proposal.tokens, proposal.q, strict=True)):
        if not rejection.could_draw(q, token, logits.shape[1]):
            break  # a broken drafter: the chain ends before
        targets.append(law_after(node - 1))
        ratio = targets[node].probability(token) / (1.0 if q is None else float(q[token]))
        shares.append(min(shares[node] * ratio, 1.0))
        if shares[-1] == 0:
            break  # nothing from here on can be accepted
    length = len(targets)
    # The longest accepted prefix: the last i with eta_i <= h_i, found from the end.
    for accepted in range(length, 0, -1):
        eta = noise.ahead(accepted - 1).uniform(Purpose.ACCEPT)
        if accepted == length:
            probability = shares[accepted]  # h_gamma = p_gamma
        else:
            token, q = proposal.tokens[accepted], proposal.q[accepted]
            probability = _keep(rejection.excess(targets[accepted], token, q, shares[accepted]), shares[accepted])
        if eta <= probability:
            break
    else:
        accepted = 0
    path = tuple(range(accepted))
    if accepted == length:
        return undrafted(path, logits, proposal, params, noise, history, maxima)
    token, q = proposal.tokens[accepted], proposal.q[accepted]
    law = rejection.residual(targets[accepted], token, q, shares[accepted])  # norm(max(0, p_tau p - q)), equation 4
    return Outcome(path, law.draw(noise.ahead(accepted).uniform(Purpose.RESIDUAL)))


def _keep(excess: float, share: float) -> float:
    """h_i = S / (S + 1 - p_i), S = sum of max(0, p_i p - q): equation 5.

    Where both are 0, p_i = 1 and p = q: the next token is accepted for certain, and so is this one.
    """
    return excess / (excess + 1 - share) if excess > 0 or share < 1 else 1.0
