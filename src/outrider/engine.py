"""The one loop: drafters propose, the target checks, the scheduler commits. Plain decoding is an empty proposal.

engine.submit(request)
while not engine.idle:
    for emitted in engine.step(): print(emitted.text, end="")
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from outrider.cache import KVCache
from outrider.drafters.base import Drafter
from outrider.guard import DrafterGuard
from outrider.models.base import CausalLM
from outrider.request import Detokeniser, Emitted, Request
from outrider.sampling import Logprobs, logprobs
from outrider.scheduler import Commit, Run, Scheduler, Work
from outrider.types import ROOT, FloatArray, Output, Proposal, Source


class Engine:
    """Generates the texts of many requests on one target. Not thread-safe, but `submit` and `cancel` may be called
    from another thread while `step` runs.

    target            the model whose text is wanted.
    cache             its KV cache; nothing else may use it.
    drafter           proposes tokens; with `policy.controller.Controller(())` this is plain decoding.
    eos_ids           tokens that end a text unless the request ignores them.
    make_detokeniser  makes one detokeniser per request.
    max_batch, chunk, max_draft  see `Scheduler`.
    debug             check every invariant after every step.
    """

    def __init__(
        self,
        target: CausalLM,
        cache: KVCache,
        drafter: Drafter,
        *,
        eos_ids: Sequence[int],
        make_detokeniser: Callable[[], Detokeniser],
        max_batch: int = 8,
        chunk: int = 256,
        max_draft: int = 8,
        debug: bool = False,
    ) -> None:
        self.target = target
        self.cache = cache
        self.drafter = DrafterGuard(drafter, target.vocabulary_size)
        self.scheduler = Scheduler(
            cache,
            context_length=target.context_length,
            vocabulary_size=target.vocabulary_size,
            eos_ids=eos_ids,
            max_batch=max_batch,
            chunk=chunk,
            max_draft=max_draft,
            taps=self.drafter.taps,
        )
        self._make_detokeniser = make_detokeniser
        self._debug = debug
        self._cancelled: deque[Request] = deque()
        self._emitted: list[Emitted] = []

    @property
    def idle(self) -> bool:
        """Whether there is nothing left to do or to tell."""
        return not (self.scheduler.waiting or self.scheduler.running or self._emitted)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises RequestError if it could never run."""
        self.scheduler.submit(request, self._make_detokeniser())

    def cancel(self, request: Request) -> None:
        """End a request before the next step; nothing happens to one that is over or was never submitted."""
        self._cancelled.append(request)

    def step(self) -> list[Emitted]:
        """One forward pass for all scheduled requests; returns what it added to each text, and which texts ended.

        A request that cannot go on (a NaN in its logits, say) ends alone, with the reason "error". If the target
        raises, nothing was committed and no request is harmed: the step may be tried again.
        """
        if self._cancelled:
            self.drop_cancelled()
        batch = self.scheduler.schedule()
        if not batch:
            return self._tell(())
        proposals = self.drafter.propose(batch)
        try:
            rows = self.cache.reserve(batch, proposals)
            output = self.target.forward(rows, self.cache)
            runs = _verify(output, batch, proposals)
            commits = self.scheduler.advance(batch, proposals, runs)
            for commit in commits:
                self.cache.commit(commit.work.sequence, commit.work.end, commit.kept)
        finally:
            self.scheduler.settle([work.request for work in batch])
        self.drafter.observe(commits, output.taps)
        return self._tell(commits)

    def check_integrity(self, commits: Sequence[Commit] = ()) -> None:
        """Assert what must hold between steps, and of the commits of the last one."""
        scheduler = self.scheduler
        for request in scheduler.running:
            assert min(request.uncomputed, request.left) >= 1, "a running request has nothing left to do"
        assert not any(request.kv.blocks or request.kv.length for request in scheduler.waiting), "a queue holds KV"
        self.cache.check({request.kv: request.reusable for request in scheduler.running})
        assert all(request.finish_reason is None for request in self.drafter.known.values()), (
            "the drafter holds a dead request"
        )
        for commit in commits:
            request, stats = commit.work.request, commit.work.request.stats
            assert len(commit.path) <= len(commit.proposal) <= commit.work.most, "more nodes than allowed"
            assert 0 <= stats.accepted <= stats.drafted, "accepted and drafted do not agree"
            assert request.params.logprobs is None or len(request.logprobs) == request.completion_tokens
            if request.finish_reason is None and commit.work.wanted:
                assert request.uncomputed == 1, "KV length is not committed - 1"
                assert request.completion_tokens == stats.accepted + stats.steps, "a + 1 tokens per step"

    def drop_cancelled(self) -> None:
        """End the requests that were cancelled; `step` does so first of all."""
        while self._cancelled:
            request = self._cancelled.popleft()
            if request in self.scheduler:
                self._emitted.append(self.scheduler.finish(request, "cancelled"))
                self.scheduler.settle([request])
                self.drafter.end(request)

    def drop_all(self) -> None:
        """End all requests, and say nothing of it: whoever waits for them is told in another way."""
        for request in (*self.scheduler.running, *self.scheduler.waiting):
            self.cancel(request)
        self.drop_cancelled()
        self._emitted = []

    def _tell(self, commits: Sequence[Commit]) -> list[Emitted]:
        emitted = self._emitted + [commit.emitted for commit in commits if commit.emitted]
        self._emitted = []
        if self._debug:
            self.check_integrity(commits)
        return emitted


def _verify(output: Output, batch: Sequence[Work], proposals: Sequence[Proposal]) -> list[Run | Exception | None]:
    """The run of each piece of work whose logits were wanted, or why it has none."""
    logits, maxima = output.logits, output.maxima
    runs: list[Run | Exception | None] = []
    row, several = 0, len(batch) > 1
    for work, proposal in zip(batch, proposals, strict=True):
        if not work.wanted:
            runs.append(None)
            continue
        end = row + 1 + len(proposal.tokens)
        mine, largest = logits, maxima
        if several:
            mine, largest = logits[row:end], None if maxima is None else maxima[row:end]
        try:
            runs.append(_run(work.request, proposal, mine, largest))
        except Exception as error:
            runs.append(error)
        row = end
    return runs


def _run(request: Request, proposal: Proposal, logits: FloatArray, maxima: FloatArray | None) -> Run:
    """Verify one proposal; logits: [1 + nodes, vocabulary], the first row that of the last committed token."""
    params = request.params
    path, token = request.verify(logits, proposal, params, request.noise, request.history, maxima)
    tokens: tuple[int, ...] = (token,)
    sources: tuple[Source, ...] = ("plain",)
    if proposal.tokens:
        tokens = (*[proposal.tokens[node] for node in path], token)
        last: Source = "recovered" if proposal.children(path[-1] if path else ROOT) else "bonus"
        accepted: list[Source] = ["accepted"] * len(path)
        sources = (*accepted, last)
    entries: tuple[Logprobs, ...] = ()
    if (n := params.logprobs) is not None:
        rows = (1 + node for node in (ROOT, *path))
        entries = tuple(logprobs(logits[row], token, n) for row, token in zip(rows, tokens, strict=True))
    return Run(path, tokens, sources, entries)
