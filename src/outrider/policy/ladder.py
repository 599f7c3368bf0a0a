"""The simplest policy: a ladder of drafters, asked from the top; the first that has something to say wins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from outrider.drafters.base import Drafter, DraftRequest, Observation, RequestView
from outrider.types import EMPTY, Proposal

log = logging.getLogger(__name__)


class Ladder(Drafter):
    """Asks its drafters in order, request by request; each proposal bears the name of the drafter that made it.

    A drafter that raises is switched off for that request, with one warning; the text is the same without it.
    """

    name = "ladder"

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = tuple(drafters)
        self._active: dict[int, list[Drafter]] = {}

    def begin(self, request: RequestView) -> None:
        self._active[request.id] = list(self._drafters)
        for drafter in self._drafters:
            self._guard(drafter, request.id, partial(drafter.begin, request))

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        proposals = [EMPTY] * len(requests)
        for drafter in self._drafters:
            waiting = [
                i
                for i, request in enumerate(requests)
                if not proposals[i] and request.most > 0 and drafter in self._active[request.id]
            ]
            if waiting:
                answers = self._ask(drafter, [requests[i] for i in waiting])
                for i, proposal in zip(waiting, answers, strict=True):
                    if proposal:
                        proposals[i] = proposal.cut(requests[i].most)
        return proposals

    def observe(self, observation: Observation) -> None:
        for drafter in tuple(self._active[observation.id]):
            self._guard(drafter, observation.id, partial(drafter.observe, observation))

    def end(self, request_id: int) -> None:
        self._active.pop(request_id, None)
        for drafter in self._drafters:  # also those switched off: they hold something still
            self._guard(drafter, request_id, partial(drafter.end, request_id))

    def _ask(self, drafter: Drafter, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """The drafter's answers; when it fails, it is asked again one by one, to find the request it fails on."""
        try:
            proposals = drafter.propose(requests)
            if len(proposals) != len(requests):
                raise ValueError(f"{len(proposals)} proposals for {len(requests)} requests")
        except Exception as error:
            if len(requests) == 1:
                self._switch_off(drafter, requests[0].id, error)
                return [EMPTY]
            return [self._ask(drafter, [request])[0] for request in requests]
        return proposals

    def _guard(self, drafter: Drafter, request_id: int, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._switch_off(drafter, request_id, error)

    def _switch_off(self, drafter: Drafter, request_id: int, error: Exception) -> None:
        log.warning("drafter %s is off for request %d: %s: %s", drafter.name, request_id, type(error).__name__, error)
        active = self._active.get(request_id, [])
        if drafter in active:
            active.remove(drafter)
