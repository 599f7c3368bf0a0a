"""The tokens that a request's grammar leaves no choice about: the names and punctuation of a JSON schema, say."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.drafters.base import Drafter, DraftRequest, RequestView
from outrider.types import EMPTY, Proposal


class GrammarDrafter(Drafter):
    """A chain of what is forced."""

    name = "grammar"

    def serves(self, request: RequestView) -> bool:
        return request.constrained

    def begin(self, request: RequestView) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [
            Proposal.chain(request.forced[: request.most], self.name) if request.forced else EMPTY
            for request in requests
        ]

    def end(self, request_id: int) -> None:
        pass
