"""What one text is allowed to be, as the loop sees it: a language, and how far in it the committed output has got.

It is exact under speculation since it is asked about each row's own path, and moved by committed tokens alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from outrider.types import ROOT, Proposal


class Constraint(Protocol):
    """The state of one request; only the commit point calls `accept`, and nothing else changes anything.

    Errors of any method end the request alone; they should be a ConstraintError.
    """

    @property
    def finished(self) -> bool:
        """Whether the output is complete, and nothing can follow."""
        ...

    def allowed(self, drafted: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Which tokens may come after the committed output and these, which are legal; [vocabulary].

        A token that ends the text is among them where the output may end, and only there. None at all: it is complete,
        or has come to a dead end.
        """
        ...

    def legal(self, drafted: Sequence[int]) -> int:
        """How many of these tokens may come, one after another, after the committed output."""
        ...

    def forced(self) -> Sequence[int]:
        """Tokens that must come next, as the language leaves no choice: a free draft."""
        ...

    def accept(self, token: int) -> None:
        """A token was committed. Raises ConstraintError if it is not allowed."""
        ...


def legal_part(proposal: Proposal, constraint: Constraint) -> Proposal:
    """The proposal without what cannot be accepted, so that no row is spent on it.

    A node that was drawn stays where it is illegal, without its descendants: the acceptance rule rejects it, and must
    know that it was drawn. To drop it would look at the draw, and let the token after it come from p instead of what is
    left of p - q.
    """
    if _is_chain(proposal) and constraint.legal(proposal.tokens) == len(proposal):
        return proposal
    place = {ROOT: ROOT}  # of each legal node in what is kept
    kept: list[int] = []
    for node, parent in enumerate(proposal.parents):
        if parent not in place:
            continue
        path = proposal.tokens_to(node)
        legal = constraint.legal(path) == len(path)
        if legal:
            place[node] = len(kept)
        if legal or proposal.q[node] is not None:
            kept.append(node)
    return Proposal(
        tuple(proposal.tokens[node] for node in kept),
        tuple(place[proposal.parents[node]] for node in kept),
        proposal.drafter,
        tuple(proposal.estimates[node] for node in kept),
        tuple(proposal.q[node] for node in kept),
    )


def _is_chain(proposal: Proposal) -> bool:
    return all(parent == node - 1 for node, parent in enumerate(proposal.parents))
