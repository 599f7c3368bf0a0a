"""Laws for the scripted target of `outrider.certify`, drafters that do as they are told, and engines to run them in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np

from outrider.cache import KVCache
from outrider.certify import scripted
from outrider.certify.scripted import Law
from outrider.drafters.base import Drafter, DraftRequest, Observation, RequestView
from outrider.engine import Engine
from outrider.models.base import KVShape
from outrider.policy.controller import Controller
from outrider.request import Emitted, Request
from outrider.sampling import SamplingParams
from outrider.tokenizer.detokeniser import Detokeniser
from outrider.types import EMPTY, FloatArray, Output, Proposal, Rows

Draft = Callable[[DraftRequest], Proposal]

SEVERAL = KVShape(layers=2, heads=2, head_dim=4)
"""More than one of each, so that a move of only a part of an entry is noticed."""


class ScriptedModel(scripted.ScriptedModel):
    """Fixture S of the fault list, with an entry of several parts and a diary of how many rows each pass had."""

    def __init__(self, law: Law, *, vocabulary: int = 16, context: int = 256, kv_shape: KVShape = SEVERAL) -> None:
        super().__init__(law, vocabulary=vocabulary, context=context, kv_shape=kv_shape)
        self.row_counts: list[int] = []

    def forward(self, rows: Rows, cache: KVCache) -> Output:
        self.row_counts.append(len(rows.tokens))
        return super().forward(rows, cache)

    def paths(self, rows: Rows, cache: KVCache) -> list[tuple[int, ...]]:
        paths = super().paths(rows, cache)
        assert [path[-1] for path in paths] == rows.tokens[rows.wanted].tolist(), "a row does not see itself last"
        return paths


def noisy(vocabulary: int = 16, seed: int = 0, *, never: Iterable[int] = ()) -> Law:
    """Random logits that depend on the whole path, so that any wrong token in it changes the text from there on."""
    banned = list(never)

    @lru_cache(maxsize=100_000)
    def law(path: tuple[int, ...]) -> FloatArray:
        logits = np.random.default_rng([seed, *path]).normal(0, 2, vocabulary).astype(np.float32)
        logits[banned] = -np.inf
        return logits

    return law


def script(text: Sequence[int], vocabulary: int = 16, *, prompt_length: int = 1) -> Law:
    """A law that writes `text` after a prompt of that length, then repeats it; it looks only at the position."""

    def law(path: tuple[int, ...]) -> FloatArray:
        return one_hot(text[(len(path) - prompt_length) % len(text)], vocabulary)

    return law


def one_hot(token: int, vocabulary: int = 16) -> FloatArray:
    """Logits of 5 for the token and 0 for the others."""
    return np.where(np.arange(vocabulary) == token, np.float32(5), np.float32(0))


def greedy_text(law: Law, prompt: Sequence[int], count: int) -> list[int]:
    """The oracle O1: plain greedy decoding, without engine, cache or rows."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(law(tuple(tokens)).argmax()))
    return tokens[len(prompt) :]


class ScriptedDrafter(Drafter):
    """Proposes what `draft` says, and keeps a diary: who is alive, what was proposed, what was observed."""

    name = "scripted"

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.alive: set[int] = set()
        self.proposed: list[Proposal] = []
        self.observed: list[Observation] = []

    def begin(self, request: RequestView) -> None:
        assert request.id not in self.alive
        self.alive.add(request.id)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        assert all(request.id in self.alive for request in requests)
        proposals = [self.draft(request) for request in requests]
        self.proposed += proposals
        return proposals

    def observe(self, observation: Observation) -> None:
        assert observation.id in self.alive
        self.observed.append(observation)

    def end(self, request_id: int) -> None:
        self.alive.remove(request_id)


def perfect(law: Law, k: int = 8) -> Draft:
    """A chain of the next k tokens that the target is going to choose."""
    return accepted(law, lambda request: k, k)


def accepted(law: Law, count: Callable[[DraftRequest], int], k: int) -> Draft:
    """A chain of k tokens of which the target accepts exactly the first count(request)."""

    def draft(request: DraftRequest) -> Proposal:
        n = min(k, request.most)
        right = min(count(request), n)
        tokens = greedy_text(law, request.tokens, n)
        vocabulary = len(law(tuple(request.tokens)))
        return Proposal.chain(tokens[:right] + [(token + 1) % vocabulary for token in tokens[right:]], "scripted")

    return draft


def scattered(law: Law, depth: int = 3) -> Draft:
    """A tree in which each right node has a wrong elder sibling, with a child of its own, stored before it."""

    def draft(request: DraftRequest) -> Proposal:
        tokens: list[int] = []
        parents: list[int] = []
        here = -1
        for token in greedy_text(law, request.tokens, depth):
            wrong = (token + 1) % len(law(tuple(request.tokens)))
            tokens += [wrong, token, token]
            parents += [here, len(parents), here]
            here = len(parents) - 1
        n = min(len(tokens), request.most)
        return Proposal(tuple(tokens), tuple(parents), "scripted", (1.0,) * len(tokens), (None,) * len(tokens)).cut(n)

    return draft


def shifted(law: Law, k: int = 8) -> Draft:
    """The right text, one token too late: wrong unless a token repeats."""
    return lambda request: Proposal.chain(greedy_text(law, request.tokens, min(k, request.most) + 1)[1:], "scripted")


def constant(*tokens: int) -> Draft:
    """Always the same chain, as far as it is allowed."""
    return lambda request: Proposal.chain(tokens[: request.most], "scripted")


def nothing(request: DraftRequest) -> Proposal:
    """No proposal: plain decoding."""
    return EMPTY


class Letters(scripted.Letters):
    """A vocabulary of bytes, and the text of its tokens."""

    def text(self, tokens: Iterable[int]) -> str:
        return b"".join(self.table[token] for token in tokens).decode("utf-8", "replace")


LETTERS = Letters()


def make_engine(
    target: ScriptedModel,
    drafter: Drafter | Draft | None = None,
    *,
    blocks: int = 64,
    eos_ids: Sequence[int] = (),
    letters: Letters = LETTERS,
    max_batch: int = 8,
    chunk: int = 256,
    max_draft: int = 8,
) -> Engine:
    """An engine that checks its invariants after every step."""
    if drafter is None:
        drafter = Controller(())
    elif not hasattr(drafter, "propose"):
        drafter = ScriptedDrafter(drafter)
    return Engine(
        target,
        KVCache(target.kv_shape, blocks),
        drafter,
        eos_ids=eos_ids,
        make_detokeniser=lambda: Detokeniser(letters),
        max_batch=max_batch,
        chunk=chunk,
        max_draft=max_draft,
        debug=True,
    )


def drain(engine: Engine, *, steps: int = 10_000) -> list[Emitted]:
    """Step until idle; checks that the pool is whole again and the drafter knows nobody."""
    emitted: list[Emitted] = []
    for _ in range(steps):
        if engine.idle:
            break
        emitted += engine.step()
    assert engine.idle, f"not idle after {steps} steps"
    engine.check_integrity()
    assert engine.cache.pool.free == engine.cache.pool.size, "the idle pool is not the pool at start"
    assert not engine.drafter.known
    return emitted


def run(engine: Engine, *requests: Request) -> list[Emitted]:
    """Submit and finish requests; checks that what was emitted joins to each request's output, and then ends."""
    for request in requests:
        engine.submit(request)
    emitted = drain(engine)
    for request in requests:
        mine = [item for item in emitted if item.request is request]
        assert [item.finish_reason for item in mine] == [None] * (len(mine) - 1) + [request.finish_reason]
        assert "".join(item.text for item in mine) == request.text
        assert [token for item in mine for token in item.token_ids] == request.output
    return emitted


def generate(engine: Engine, prompt: Sequence[int], params: SamplingParams | None = None) -> Request:
    """One request, from start to end."""
    request = Request(prompt, params or SamplingParams(max_tokens=12))
    run(engine, request)
    return request
