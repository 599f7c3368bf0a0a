"""What the acceptance rules have in common: their signature, the rows that they judge and the laws of these, and the
walk of those rules in which the target draws by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from outrider.randomness import Noise, Purpose
from outrider.sampling import (
    Distribution,
    History,
    SamplingParams,
    adjusted,
    changed,
    distribution,
    draw_coupled,
    maxima_after,
)
from outrider.types import ROOT, FloatArray, Outcome, Proposal


class Verify(Protocol):
    """An acceptance rule: a pure function; the same arguments give the same outcome, and none is modified."""

    def __call__(
        self,
        logits: FloatArray,
        proposal: Proposal,
        params: SamplingParams,
        noise: Noise,
        history: History,
        maxima: FloatArray | None = None,
    ) -> Outcome:
        """Which drafted nodes are accepted, and the token after them.

        logits    float32, [1 + len(proposal), vocabulary]: row 0 of the last committed token, row 1 + j of node j.
        proposal  its ids are known to be inside the vocabulary; nothing else about it is trusted.
        noise     at the output position of the token that row 0 predicts.
        history   what comes before row 0.
        maxima    the largest of each 32 logits, [1 + len(proposal), ceil(vocabulary / 32)], if they are at hand: the
                  outcome is the same without, but takes longer to find.

        Raises NumericError if a row that decides is not a number.
        """
        ...


def rows(
    logits: FloatArray,
    proposal: Proposal,
    params: SamplingParams,
    history: History,
    maxima: FloatArray | None = None,
) -> Callable[[int], tuple[FloatArray, FloatArray | None]]:
    """A function from a node (ROOT: the last committed token) to its row after bias, masks and penalties, and to the
    row's maxima, if they are at hand.

    Each row sees the committed tokens and those of its own path; rows that nobody asks for cost nothing.
    """
    if not params.adjusts and history.allowed is None and history.constraint is None:
        return lambda node: (logits[node + 1], None if maxima is None else maxima[node + 1])

    def row(node: int) -> tuple[FloatArray, FloatArray | None]:
        drafted = proposal.tokens_to(node)
        values = adjusted(logits[node + 1], params, history, drafted)
        if maxima is None or (ids := changed(params, history, drafted)) is None:
            return values, None
        return values, maxima_after(values, maxima[node + 1], ids)

    return row


def laws(
    logits: FloatArray,
    proposal: Proposal,
    params: SamplingParams,
    history: History,
    maxima: FloatArray | None = None,
) -> Callable[[int], Distribution]:
    """A function from a node to the law of the token after it, under all sampling rules."""
    row = rows(logits, proposal, params, history, maxima)

    def law(node: int) -> Distribution:
        values, largest = row(node)
        return distribution(values, params, largest)

    return law


def undrafted(
    path: Sequence[int],
    logits: FloatArray,
    proposal: Proposal,
    params: SamplingParams,
    noise: Noise,
    history: History,
    maxima: FloatArray | None = None,
) -> Outcome:
    """The outcome of accepting `path`, after which nothing was drafted: there is nothing to judge, only to draw.

    The token is drawn in a race, as by `coupled`, which mostly needs no law; with numbers of a purpose of its own, with
    which no draft was drawn.
    """
    values, largest = rows(logits, proposal, params, history, maxima)(path[-1] if path else ROOT)
    token = draw_coupled(values, params, noise.ahead(len(path)), largest, Purpose.UNDRAFTED)
    return Outcome(tuple(path), token)


def follow(proposal: Proposal, choose: Callable[[int, int], int]) -> Outcome:
    """Follow the target's own tokens for as long as they were drafted.

    choose(node, depth) is the target's token after `node` (ROOT: after the last committed token), which is `depth`
    nodes deep. That token is emitted whatever the proposal holds, so the text cannot depend on the proposal.
    """
    path: list[int] = []
    node = ROOT
    while True:
        token = choose(node, len(path))
        for child in proposal.children(node):
            if proposal.tokens[child] == token:
                path.append(child)
                node = child
                break
        else:
            return Outcome(tuple(path), token)
