"""What a drafter is: a life cycle per request (begin, propose, observe, end) and the values it is given.

A drafter is untrusted: what it proposes costs or saves time and never changes the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.types import Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """A request as drafters see it.

    id             unique among all requests of the process, never used again.
    tokens         prompt and committed output: the engine's own growing list; read it, and let it go at `end`.
    prompt_length  how many of them are the prompt.
    prediction     tokens that the caller expects as output; mostly ().
    """

    id: int
    tokens: Sequence[int]
    prompt_length: int
    prediction: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRequest(RequestView):
    """A request that wants a proposal of at most `most` nodes (0 or more)."""

    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What became of one request in one step: the tokens committed, the proposal, and its accepted nodes.

    The tokens may be fewer than path and next token say: a run is cut where the request stops.
    """

    id: int
    committed: tuple[int, ...]
    proposal: Proposal
    path: tuple[int, ...]


class Drafter(Protocol):
    """Proposes tokens for the requests between their `begin` and `end`, and holds nothing of the others."""

    name: str

    def begin(self, request: RequestView) -> None:
        """A request starts; its prompt is in `tokens`."""
        ...

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """One proposal per request, in order, of at most `most` nodes; EMPTY where there is nothing to say."""
        ...

    def observe(self, observation: Observation) -> None:
        """A step was committed. A drafter that reads `tokens` at the next proposal need not care."""
        return None

    def end(self, request_id: int) -> None:
        """The request is over, however it went: forget it. Unknown ids are no error."""
        ...
