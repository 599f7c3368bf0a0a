"""A request: one text being generated, and the values that tell its caller what each step added to it.

The request owns the committed tokens; everything else reads them, and only the scheduler's `advance` adds to them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from outrider.cache import KVSequence
from outrider.constraints import Constraint
from outrider.randomness import Noise
from outrider.sampling import History, Logprobs, SamplingParams
from outrider.speculation import AUTO, Speculation
from outrider.stops import StopMatcher
from outrider.types import FinishReason, Source
from outrider.verify import Verify

_ids = itertools.count()


class Detokeniser(Protocol):
    """Turns the ids of one text into text, in order; see `outrider.tokenizer.Detokeniser`."""

    def push(self, token: int) -> str:
        """The text that the token completes."""
        ...

    def flush(self) -> str:
        """The text of what was left unfinished."""
        ...


@dataclass(slots=True)
class Stats:
    """Counts of one request.

    steps        steps that committed something for it.
    drafted      nodes sent to verification.
    accepted     drafted nodes whose tokens were committed; recovered and bonus tokens are none.
    preemptions  how often its KV was dropped for want of room, and computed again.
    cached       prompt tokens whose KV was there already, in the prefix cache.
    """

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    cached: int = 0


@dataclass(slots=True)
class Timings:
    """When things happened, in seconds of `time.perf_counter`; None: not yet."""

    submitted: float | None = None
    first_token: float | None = None
    finished: float | None = None


@dataclass(eq=False, slots=True)
class Request:
    """One text being generated. Its identity is the object; the id is unique in the process and never used again.

    prompt       ids before the text.
    choice       index of the text among those that were asked for together; each draws other random numbers.
    prediction   tokens that the caller expects as output: a hint to drafters.
    speculation  who drafts, and how much, within the engine's own limit; of length 0: no drafter hears of it.
    constraint   what the text may be; its own, as it follows the text.
    reuse        whether it may use KV that was computed for others, and they its own; the text is the same.

    seed           params.seed, or fresh entropy.
    tokens         prompt and committed output.
    logprobs       one entry per committed output token, if params.logprobs asks for them.
    pieces         the committed text, as it was let out.
    drafters       names of the drafters whose proposals were verified, in order of first use.
    kv             what the target has computed of it.
    finish_reason  None while it runs; with "error", `error` is the cause.

    An engine that takes the request sets limit (the most tokens, prompt and output), stop_ids (tokens that end it),
    verify (its acceptance rule), history (what its rows are judged by) and detokeniser.
    """

    prompt: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    choice: int = 0
    prediction: tuple[int, ...] = ()
    speculation: Speculation = AUTO
    constraint: Constraint | None = None
    reuse: bool = True

    id: int = field(init=False, default_factory=_ids.__next__)
    seed: int = field(init=False)
    tokens: list[int] = field(init=False)
    logprobs: list[Logprobs] = field(init=False, default_factory=list)
    pieces: list[str] = field(init=False, default_factory=list)
    drafters: list[str] = field(init=False, default_factory=list)
    kv: KVSequence = field(init=False, default_factory=KVSequence)
    matcher: StopMatcher = field(init=False)
    stats: Stats = field(init=False, default_factory=Stats)
    timings: Timings = field(init=False, default_factory=Timings)
    finish_reason: FinishReason | None = field(init=False, default=None)
    error: Exception | None = field(init=False, default=None)

    limit: int = field(init=False)
    stop_ids: frozenset[int] = field(init=False)
    verify: Verify = field(init=False)
    history: History = field(init=False)
    detokeniser: Detokeniser = field(init=False)

    def __post_init__(self) -> None:
        self.seed = int.from_bytes(os.urandom(8), "little") if self.params.seed is None else self.params.seed
        self.tokens = list(self.prompt)
        self.matcher = StopMatcher(self.params.stop)

    @property
    def output(self) -> list[int]:
        """The committed output tokens."""
        return self.tokens[len(self.prompt) :]

    @property
    def completion_tokens(self) -> int:
        """How many output tokens are committed."""
        return len(self.tokens) - len(self.prompt)

    @property
    def noise(self) -> Noise:
        """The random numbers of the next output token."""
        position = len(self.tokens) - len(self.prompt)
        return Noise(self.seed, self.choice, position, position)

    @property
    def text(self) -> str:
        """The committed text. What may be the beginning of a stop string or of a character is not yet in it."""
        return "".join(self.pieces)

    @property
    def left(self) -> int:
        """How many more output tokens may come."""
        return self.limit - len(self.tokens)

    @property
    def reusable(self) -> Sequence[int]:
        """The tokens whose KV it shares with others: its own, or none."""
        return self.tokens if self.reuse and self.error is None else ()

    @property
    def uncomputed(self) -> int:
        """Committed tokens whose KV is not computed: 1 while it decodes, more during prefill, never 0."""
        return len(self.tokens) - self.kv.length


class Piece(NamedTuple):
    """Text that one committed token let out, and how the token came about.

    Text that was held back (an unfinished character, a possible stop string) belongs to the token that let it out.
    """

    text: str
    source: Source


class Drafting(NamedTuple):
    """What one step drafted for a request.

    allowed    most nodes that could have been drafted; 0 if the request wants none, or tokens or room run out.
    drafted    nodes sent to verification.
    accepted   those of them that were committed.
    drafter    who drafted; "" if nobody did.
    declined   nothing was drafted because it would not have paid, and not for want of drafts.
    """

    allowed: int = 0
    drafted: int = 0
    accepted: int = 0
    drafter: str = ""
    declined: bool = False


UNDRAFTED = Drafting()


@dataclass(slots=True)
class Emitted:
    """What one step added to a request; with a finish reason it is the last of that request.

    The pieces of all steps join to the request's text, the token ids to its output; each id has a source. Where there
    are no ids, no step was made.
    """

    request: Request
    pieces: tuple[Piece, ...]
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    sources: tuple[Source, ...] = ()
    drafting: Drafting = UNDRAFTED

    @property
    def text(self) -> str:
        """The pieces, joined."""
        return "".join(piece.text for piece in self.pieces)
