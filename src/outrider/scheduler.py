"""Who takes part in a step, with how many rows, and what is committed after it.

`schedule` admits, preempts and shares out the rows of a step; `advance` is the one place where a text grows or ends.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.cache import BLOCK, KVCache, KVSequence
from outrider.errors import ContextError, RequestError
from outrider.request import UNDRAFTED, Detokeniser, Drafting, Emitted, Piece, Request
from outrider.sampling import History, Logprobs, SamplingParams, allowed_mask, check_ids, check_possible
from outrider.types import FinishReason, Proposal, Source
from outrider.verify import rule


@dataclass(slots=True)
class Work:
    """The part of a request in one step: committed tokens start .. end - 1, then a proposal of at most `most` nodes.

    wanted  the stretch reaches the last committed token, so the step commits at least one token more.
    """

    request: Request
    start: int
    end: int
    most: int
    wanted: bool

    @property
    def sequence(self) -> KVSequence:
        """Where the request's KV is."""
        return self.request.kv

    @property
    def tokens(self) -> list[int]:
        """The stretch."""
        return self.request.tokens[self.start : self.end]


@dataclass(slots=True)
class Run:
    """What verification gives one request: tokens to commit unless the request stops before, and where each is from.

    path      the accepted nodes, root to leaf; tokens are theirs, and one more.
    logprobs  one entry per token, or none at all.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    sources: tuple[Source, ...]
    logprobs: tuple[Logprobs, ...] = ()


@dataclass(slots=True)
class Commit:
    """What one step made of one piece of work: accepted nodes, and what was committed of the run (None: no run)."""

    work: Work
    proposal: Proposal
    path: tuple[int, ...]
    emitted: Emitted | None

    @property
    def rows(self) -> int:
        """How many rows of the pass were its own: the stretch, then the nodes."""
        return self.work.end - self.work.start + len(self.proposal)

    @property
    def kept(self) -> tuple[int, ...]:
        """The nodes whose KV is committed: those of all committed tokens but the last, the next step's root."""
        return self.path[: max(len(self.emitted.token_ids) - 1, 0)] if self.emitted else ()


class Scheduler:
    """Waiting requests in order of arrival, running ones oldest first, and the commit point.

    context_length, vocabulary_size  of the target.
    max_batch                        most requests that run together.
    chunk                            rows per step: decoding requests and their drafts first, then prompts.
    max_draft                        most drafted nodes per request and step.
    taps                             a drafter reads hidden states, which come of positions that are computed.

    However small the chunk is, each decoding request gets its row, and the oldest prompt makes progress.
    """

    def __init__(
        self,
        cache: KVCache,
        *,
        context_length: int,
        vocabulary_size: int,
        eos_ids: Sequence[int],
        max_batch: int,
        chunk: int,
        max_draft: int,
        taps: bool = False,
    ) -> None:
        for name, value, least in (("max_batch", max_batch, 1), ("chunk", chunk, 1), ("max_draft", max_draft, 0)):
            if value < least:
                raise RequestError(f"{name}={value} is not possible; allowed: {least} or more")
        self._cache = cache
        self._context_length = context_length
        self._vocabulary_size = vocabulary_size
        self._eos_ids = frozenset(token for token in eos_ids if token in range(vocabulary_size))  # others have no logit
        self.max_batch = max_batch
        self._chunk = chunk
        self._max_draft = max_draft
        self._taps = taps
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def check(self, request: Request) -> None:
        """Raises RequestError if the request could never run."""
        prompt = request.tokens
        if request.timings.submitted is not None:
            raise RequestError(f"request {request.id} was submitted before; make a new one for each text")
        if not prompt:
            raise RequestError("the prompt is empty; expected at least one token", "prompt")
        check_ids("prompt", prompt, self._vocabulary_size)
        if len(prompt) >= self._context_length:
            raise ContextError(
                f"the prompt has {len(prompt)} tokens; the context of {self._context_length} leaves room for at most "
                f"{self._context_length - 1} and one token of output",
                "prompt",
            )
        limit = self._limit(request)
        if limit - 1 > self._cache.positions:  # the last token's KV is never needed
            raise RequestError(
                f"the prompt of {len(prompt)} tokens and up to {limit - len(prompt)} of output need {limit - 1} "
                f"positions; the KV cache has {self._cache.positions}: lower max_tokens, or make the cache larger"
            )

        request.speculation.check(self._max_draft)
        if request.constraint and request.params.min_tokens:
            reason = "min_tokens is not possible with a constraint, which says itself where the text may end"
            raise RequestError(reason, "min_tokens")
        check_possible(request.params, self._vocabulary_size, self._stop_ids(request.params), limit - len(prompt))

    def submit(self, request: Request, detokeniser: Detokeniser) -> None:
        """Queue a request. Raises RequestError if it could never run; then nothing has changed."""
        self.check(request)
        params = request.params
        request.limit = self._limit(request)
        request.stop_ids = self._stop_ids(params)
        request.verify = rule(params.rule)
        allowed = allowed_mask(params, self._vocabulary_size)
        request.history = History(request.tokens, len(request.prompt), request.stop_ids, allowed, request.constraint)
        request.detokeniser = detokeniser
        request.timings.submitted = time.perf_counter()
        self.waiting.append(request)

    def __contains__(self, request: Request) -> bool:
        """Whether the request waits or runs."""
        return request in self.running or request in self.waiting

    def schedule(self) -> list[Work]:
        """The work of the next step; none if there is no request.

        Rows go to decoding requests, to their drafts in equal shares, and to prompts, oldest first. When KV runs
        short, drafts shrink first; then the youngest running request gives way; then admission waits.
        """
        for request in self.running:
            self._reuse(request)  # what another one may have computed since
        self._preempt()
        self._admit()
        decoding: list[Request] = []
        prefilling: list[Request] = []
        for request in self.running:
            (decoding if request.uncomputed == 1 else prefilling).append(request)
        rows = max(self._chunk - len(decoding), 0)
        drafts = []
        for place, request in enumerate(decoding):
            length = request.speculation.length
            most = self._max_draft if length is None else length
            drafts.append(min(most, request.left - 1, rows // (len(decoding) - place)))
            rows -= drafts[-1]

        free = self._cache.pool.free - sum([self._cache.missing(r.kv, len(r.tokens)) for r in decoding])
        rows = max(rows, 1)
        prompts = []
        for request in prefilling:
            start = request.kv.length
            count, free = self._fit(start, min(request.uncomputed, rows), free)
            rows -= count
            if count:
                end = start + count
                prompts.append(Work(request, start, end, most=0, wanted=end == len(request.tokens)))
        batch = []
        for request, wish in zip(decoding, drafts, strict=True):
            end = len(request.tokens)
            most, free = self._fit(end, wish, free) if wish else (0, free)
            batch.append(Work(request, end - 1, end, most, wanted=True))
        return batch + prompts

    def advance(
        self, batch: Sequence[Work], proposals: Sequence[Proposal], runs: Sequence[Run | Exception | None]
    ) -> list[Commit]:
        """The one commit point: each run's tokens are committed one by one, up to where the request ends.

        Tokens, text, log-probabilities, counts and finish reasons change here and nowhere else. An exception in place
        of a run ends that request alone; None is work whose logits were not wanted.
        """
        commits = []
        for work, proposal, run in zip(batch, proposals, runs, strict=True):
            if run is None:
                commits.append(Commit(work, proposal, (), None))
            elif isinstance(run, Exception):
                work.request.error = run
                commits.append(Commit(work, proposal, (), self.finish(work.request, "error")))
            else:
                commits.append(Commit(work, proposal, run.path, self._walk(work, proposal, run)))
        return commits

    def finish(self, request: Request, reason: FinishReason) -> Emitted:
        """End a request that runs or waits; its KV stays until `settle`. Returns the last that is emitted of it."""
        tail = self._end(request, reason)
        return Emitted(request, (Piece(tail, "plain"),) if tail else (), (), reason)

    def settle(self, requests: Sequence[Request]) -> None:
        """Free what was reserved and not committed, and everything of requests that are over; what was committed can be
        used again by others."""
        for request in requests:
            if request.finish_reason is None:
                self._cache.trim(request.kv)
                self._cache.remember(request.kv, request.reusable)
            else:
                self._cache.release(request.kv, request.reusable)

    def _stop_ids(self, params: SamplingParams) -> frozenset[int]:
        return frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos_ids)

    def _limit(self, request: Request) -> int:
        """The most tokens that prompt and output may have together."""
        most = request.params.max_tokens
        return self._context_length if most is None else min(self._context_length, len(request.prompt) + most)

    def _walk(self, work: Work, proposal: Proposal, run: Run) -> Emitted:
        """Commit a run, token by token, up to the first stop id, stop string, end of the grammar, or limit."""
        request = work.request
        tokens, matcher, constraint = request.tokens, request.matcher, request.constraint
        reason: FinishReason | None = None
        pieces = []
        begin = len(tokens)
        for place, token in enumerate(run.tokens):
            stop = token in request.stop_ids  # such a token counts, but adds no text
            complete = False
            try:
                if constraint:
                    constraint.accept(token)
                    complete = constraint.finished
                text = "" if stop else matcher.push(request.detokeniser.push(token))
            except Exception as error:  # say, the model has more ids than the tokenizer, and chose one of them
                request.error, reason = error, "error"
                break
            tokens.append(token)
            if run.logprobs:
                request.logprobs.append(run.logprobs[place])
            if text:
                pieces.append(Piece(text, run.sources[place]))
                request.pieces.append(text)
            if stop or complete or matcher.stopped:
                reason = "stop"
                break
            if len(tokens) == request.limit:
                reason = "length"
                break
        committed = len(tokens) - begin
        stats = request.stats
        stats.steps += 1
        drafting = UNDRAFTED
        if work.most:
            drafted, accepted = len(proposal.tokens), min(len(run.path), committed)
            drafting = Drafting(work.most, drafted, accepted, proposal.drafter, proposal.declined)
            if drafted:
                stats.drafted += drafted
                stats.accepted += accepted
                if proposal.drafter not in request.drafters:
                    request.drafters.append(proposal.drafter)
        if committed and request.timings.first_token is None:
            request.timings.first_token = time.perf_counter()
        if reason and (tail := self._end(request, reason)):
            pieces.append(Piece(tail, run.sources[place]))
        return Emitted(request, tuple(pieces), run.tokens[:committed], reason, run.sources[:committed], drafting)

    def _end(self, request: Request, reason: FinishReason) -> str:
        """Take a request out and note why; returns the text that was still held back."""
        (self.running if request in self.running else self.waiting).remove(request)
        request.finish_reason = reason
        request.timings.finished = time.perf_counter()
        matcher = request.matcher
        tail = "" if matcher.stopped else matcher.push(request.detokeniser.flush()) + matcher.flush()
        request.pieces.append(tail)
        return tail

    def _preempt(self) -> None:
        """Until each running request can compute one row more: the youngest gives up its KV and waits, first in line.

        A request alone always can: `submit` took care of that.
        """
        pool, running = self._cache.pool, self.running
        while pool.free < len(running) and pool.free < sum(self._cache.missing(r.kv, r.kv.length + 1) for r in running):
            request = self.running.pop()
            self._cache.release(request.kv, request.reusable)
            request.stats.preemptions += 1
            self.waiting.appendleft(request)

    def _admit(self) -> None:
        """Let waiting requests in while their committed tokens fit beside those of the running ones."""
        if not self.waiting:
            return
        free = self._cache.pool.free - sum(self._cache.missing(r.kv, len(r.tokens)) for r in self.running)
        while self.waiting and len(self.running) < self.max_batch:
            request = self.waiting[0]
            free -= self._cache.blocks_for(len(request.tokens)) - self._cache.shared(self._adoptable(request))
            if free < 0:
                break
            self.running.append(self.waiting.popleft())
            self._reuse(request)

    def _reuse(self, request: Request) -> None:
        """Spare a prompt what is known of it."""
        if request.uncomputed > 1:
            found = self._cache.adopt(request.kv, self._adoptable(request))
            if not request.stats.preemptions:
                request.stats.cached += found

    def _adoptable(self, request: Request) -> Sequence[int]:
        """The tokens whose KV a request takes from others, as far as it is known.

        Two are left to compute: the last for its logits, and another so that it is a prompt still, and drafts nothing
        yet. A request thus takes the steps that it would take without the cache, of which a seed's text under rejection
        and block is a function. A head that reads hidden states needs that of the last position before the text
        departs from what is known: what it makes of it depends on the token after it.
        """
        tokens = request.reusable[:-2]
        return tokens[: max(self._cache.known(tokens) - 1, 0)] if self._taps else tokens

    def _fit(self, positions: int, rows: int, free: int) -> tuple[int, int]:
        """How many of `rows` fit after `positions` with `free` more blocks; and how many blocks are free then."""
        held = self._cache.blocks_for(positions)
        rows = min(rows, (held + free) * BLOCK - positions)
        return rows, free - (self._cache.blocks_for(positions + rows) - held)
