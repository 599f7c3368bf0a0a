"""What a drafter is: a life cycle per request (begin, propose, observe, end) and the values it is given.

A drafter is untrusted: what it proposes costs or saves time and never changes the text. The values that it is given are
its own; they are not frozen for the reason given in `outrider.types`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from outrider.randomness import Noise
from outrider.sampling import SamplingParams
from outrider.speculation import AUTO, Speculation
from outrider.types import FloatArray, Proposal


@dataclass(slots=True, kw_only=True)
class RequestView:
    """A request as drafters see it.

    id             unique among all requests of the process, never used again.
    tokens         prompt and committed output: the engine's own growing list; read it, and let it go at `end`.
    prompt_length  how many of them are the prompt.
    prediction     tokens that the caller expects as output; mostly ().
    constrained    whether a grammar says what its output may be.
    speculation    what it says about drafting; a policy heeds it, the drafters themselves need only its length, see
                   `DraftRequest.limit`.
    reuse          whether what is computed for it may be kept for others, and what others have left be used for it.
    """

    id: int
    tokens: Sequence[int]
    prompt_length: int
    prediction: tuple[int, ...] = ()
    constrained: bool = False
    speculation: Speculation = AUTO
    reuse: bool = True


@dataclass(slots=True, kw_only=True)
class DraftRequest(RequestView):
    """A request that wants a proposal of at most `most` nodes (0 or more). Between two proposals its fields may change.

    forced  tokens that its grammar leaves no choice about; mostly ().
    params  what it asks of sampling: a drafter that draws does so under the same rules, if it can.
    noise   the random numbers of the next output token; `noise.ahead(i)` are those of the i-th after it. A drafter that
            draws uses no others, so that the same request gives the same text again: under coupled acceptance
            `Distribution.draw_coupled(noise.ahead(depth))`, as the target will, otherwise
            `Distribution.draw(noise.ahead(depth).uniform(Purpose.DRAFT, sibling))`.
    rows    rows of the coming pass without any draft, of all requests together.
    asleep  other requests that take part in it, and are not asked about.
    """

    most: int
    rows: int = 1
    asleep: int = 0
    forced: tuple[int, ...] = ()
    params: SamplingParams = field(default_factory=SamplingParams)
    noise: Noise = field(default_factory=lambda: Noise(0))

    def limit(self, own: int) -> int:
        """The most nodes from a drafter that of itself proposes no more than `own`: what is asked for goes before."""
        return self.most if self.speculation.length is not None else min(own, self.most)


@dataclass(frozen=True, slots=True)
class Taps:
    """Hidden states of the target at consecutive positions of one request, `start` the first.

    layers  layer -> [positions, hidden], the inputs of that layer; valid until the target's next pass: copy what is
            to be kept.

    They come in order, up to the last committed token but one. There are none for positions whose KV was in the prefix
    cache: where `start` is past the positions that are known, those between were not computed. The last of those that
    two texts have in common always is, since what a head makes of it depends on the token after it. After a preemption
    positions may come again, with the same numbers.
    """

    start: int
    layers: Mapping[int, FloatArray]


@dataclass(slots=True, kw_only=True)
class Observation:
    """What became of one request in one step: the tokens committed, the proposal, and its accepted nodes.

    The tokens may be fewer than path and next token say: a run is cut where the request stops. Where the target has
    taps there is an observation for each piece of a prompt, too, which commits nothing.
    """

    id: int
    committed: tuple[int, ...]
    proposal: Proposal
    path: tuple[int, ...]
    taps: Taps | None = None


class Drafter(Protocol):
    """Proposes tokens for the requests between their `begin` and `end`, and holds nothing of the others.

    cost      time of one drafted token, in one-row passes of the target. With 0 it is free: a policy asks it first, and
              cuts what it gets.
    draws     whether nodes may be drawn (have a q). Their number is then fixed before it is asked, see `propose`.
    taps      whether it reads hidden states of the target, see `Taps`.
    expected  acceptance at each depth in an average text, the last one for all deeper ones: what a policy believes of a
              drafter that is not free, or that draws, before it is asked.
    """

    name: str
    cost: float = 0.0
    draws: bool = False
    taps: bool = False
    expected: Sequence[float] = (0.6,)

    def serves(self, request: RequestView) -> bool:
        """Whether it may ever have something to say about this request; a policy leaves it alone otherwise."""
        return True

    def begin(self, request: RequestView) -> None:
        """A request starts; its prompt is in `tokens`."""
        ...

    def awake(self, request_ids: Sequence[int]) -> Sequence[int]:
        """About which of these requests it is to be asked in the coming step.

        The others cost it nothing: it is told of their step only where the target has taps, and finds the committed
        tokens in `tokens`.
        """
        return request_ids

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """One proposal per request, in order, of at most `most` nodes; EMPTY where there is nothing to say.

        Where nodes are drawn (their q is not None), rejection and block need a shape that does not look at what was
        drawn: whether there is a node, and below which parent, may depend on its ancestors and on its q, never on its
        token or the q of its token. With p = (.6, .4) and q = (.5, .5), dropping token 1 whenever it is drawn gives
        (.8, .2). Nodes without chance may be chosen and cut at will.
        """
        ...

    def observe(self, observation: Observation) -> None:
        """A step was committed. A drafter that reads `tokens` at the next proposal need not care."""
        return None

    def end(self, request_id: int) -> None:
        """The request is over, however it went: forget it. Unknown ids are no error."""
        ...
