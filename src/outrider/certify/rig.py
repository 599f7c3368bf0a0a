"""Engines of replaceable parts: a check runs on honest ones, a negative control on the same but for a faulty one.

The engine itself has no switch for faults; whatever is planted, it is an object that takes the place of another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.cache import KVCache
from outrider.drafters.base import Drafter, DraftRequest, Observation, RequestView
from outrider.engine import Engine
from outrider.models.base import CausalLM, KVShape
from outrider.request import Detokeniser, Emitted, Request
from outrider.types import Proposal
from outrider.verify import Verify

Draft = Callable[[DraftRequest], Proposal]


def honest(rule: Verify) -> Verify:
    """The rule itself."""
    return rule


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine is built of.

    target   the model.
    drafter  a policy or drafter.
    cache    makes the KV cache, from its shape and number of blocks.
    rule     what takes the place of each request's acceptance rule.
    """

    target: CausalLM
    drafter: Drafter
    cache: Callable[[KVShape, int], KVCache] = KVCache
    rule: Callable[[Verify], Verify] = honest


Fault = Callable[[Parts], Parts]
"""A planted fault: the same parts but for one."""


class Rig:
    """An engine of such parts, and requests that run on it. For the arguments see `Engine`.

    blocks  of the KV cache.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        blocks: int,
        make_detokeniser: Callable[[], Detokeniser],
        eos_ids: Sequence[int] = (),
        max_batch: int = 8,
        chunk: int = 256,
        max_draft: int = 8,
        debug: bool = False,
    ) -> None:
        self._rule = parts.rule
        self.engine = Engine(
            parts.target,
            parts.cache(parts.target.kv_shape, blocks),
            parts.drafter,
            eos_ids=eos_ids,
            make_detokeniser=make_detokeniser,
            max_batch=max_batch,
            chunk=chunk,
            max_draft=max_draft,
            debug=debug,
        )

    def run(self, requests: Sequence[Request], watch: Callable[[Emitted], None] = lambda emitted: None) -> None:
        """Run requests to their ends; `watch` sees what each step adds, and may cancel.

        Raises the error of the first request that failed.
        """
        for request in requests:
            self.engine.submit(request)
            request.verify = self._rule(request.verify)
        while not self.engine.idle:
            for emitted in self.engine.step():
                watch(emitted)
        for request in requests:
            if request.error is not None:
                raise request.error


class FunctionDrafter(Drafter):
    """Proposes what a function of the request says; with `draws`, what it draws."""

    def __init__(self, name: str, draft: Draft, *, draws: bool = False) -> None:
        self.name = name
        self.draws = draws
        self._draft = draft

    def begin(self, request: RequestView) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._draft(request) for request in requests]

    def end(self, request_id: int) -> None:
        pass


class Altered(Drafter):
    """Another drafter's proposals, each altered by a function; in all else it is that drafter."""

    def __init__(self, drafter: Drafter, alter: Callable[[Proposal, DraftRequest], Proposal]) -> None:
        self.name, self.cost, self.draws = drafter.name, drafter.cost, drafter.draws
        self.taps, self.expected = drafter.taps, drafter.expected
        self._drafter = drafter
        self._alter = alter

    def serves(self, request: RequestView) -> bool:
        return self._drafter.serves(request)

    def begin(self, request: RequestView) -> None:
        self._drafter.begin(request)

    def awake(self, request_ids: Sequence[int]) -> Sequence[int]:
        return self._drafter.awake(request_ids)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        proposals = self._drafter.propose(requests)
        return [self._alter(proposal, request) for proposal, request in zip(proposals, requests, strict=True)]

    def observe(self, observation: Observation) -> None:
        self._drafter.observe(observation)

    def end(self, request_id: int) -> None:
        self._drafter.end(request_id)


def spread(seed: int, setting: object) -> int:
    """A seed of 62 bits for a setting's own draws, made of the certificate's; the same for the same two arguments."""
    digest = hashlib.blake2b(f"{seed} {setting}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2
