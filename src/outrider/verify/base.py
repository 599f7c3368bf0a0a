"""What the acceptance rules have in common: their signature, and the walk of those where the target draws by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from outrider.randomness import Noise
from outrider.sampling import SamplingParams
from outrider.types import ROOT, FloatArray, Outcome, Proposal


class Verify(Protocol):
    """An acceptance rule: a pure function; the same arguments give the same outcome, and none is modified."""

    def __call__(self, logits: FloatArray, proposal: Proposal, params: SamplingParams, noise: Noise) -> Outcome:
        """Which drafted nodes are accepted, and the token after them.

        logits    float32, [1 + len(proposal), vocabulary]: row 0 of the last committed token, row 1 + j of node j.
        proposal  its ids are known to be inside the vocabulary; nothing else about it is trusted.
        noise     at the output position of the token that row 0 predicts.

        Raises NumericError if a row that decides is not a number.
        """
        ...


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
