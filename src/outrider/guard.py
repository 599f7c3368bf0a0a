"""The engine's side of a drafter, which is untrusted: what it does wrong ends here, and costs speed, never text."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from operator import index
from types import MappingProxyType

import numpy as np

from outrider.constraints import legal_part
from outrider.drafters.base import Drafter, DraftRequest, Observation, Taps
from outrider.request import Request
from outrider.scheduler import Commit, Work
from outrider.types import DECLINED, EMPTY, ROOT, FloatArray, Proposal

log = logging.getLogger(__name__)


class DrafterGuard:
    """Leads a drafter through the life of each request; passes on only what is possible, and warns once if it had to.

    taps   whether the drafter reads hidden states of the target.
    known  the requests that the drafter was told of and that are not over, by id.
    """

    def __init__(self, drafter: Drafter, vocabulary: int) -> None:
        self._drafter = drafter
        self._vocabulary = vocabulary
        self._suspected = False
        self._asleep: set[int] = set()
        self._views: dict[int, DraftRequest] = {}
        self.taps = drafter.taps
        self.known: dict[int, Request] = {}

    def propose(self, batch: Sequence[Work]) -> list[Proposal]:
        """One proposal per piece of work; EMPTY where none is allowed or none is usable."""
        for work in batch:
            if work.request.id not in self.known and work.request.speculation.length != 0:
                self._begin(work.request)
        proposals = [EMPTY] * len(batch)
        places, ids, rows = [], [], 0
        for place, work in enumerate(batch):
            rows += work.end - work.start
            if work.most > 0:
                places.append(place)
                ids.append(work.request.id)
        if self._asleep:
            self._asleep.clear()
        if not places:
            return proposals
        try:
            awake = self._drafter.awake(ids)
            if len(awake) < len(ids):
                self._asleep = {*ids}.difference(awake)
                for place in places:
                    if batch[place].request.id in self._asleep:
                        proposals[place] = DECLINED
                if not awake:
                    return proposals
                places = [place for place in places if batch[place].request.id in awake]
            asleep = len(self._asleep)
            answers = self._drafter.propose([self._view(batch[place], rows, asleep) for place in places])
            if len(answers) != len(places):
                raise ValueError(f"{len(answers)} proposals for {len(places)} requests")
            for place, answer in zip(places, answers, strict=True):
                if answer is not EMPTY:
                    proposals[place] = answer if answer is DECLINED else self._usable(answer, batch[place])
        except Exception as error:
            self._suspect(error)
        return proposals

    def observe(self, commits: Sequence[Commit], taps: Mapping[int, FloatArray] = MappingProxyType({})) -> None:
        """Tell the drafter what was committed, and of each request that is over.

        taps  of the step's rows, by layer, [rows, hidden]; of each request, the drafter sees those whose KV was kept.
        """
        row = 0
        for commit in commits:
            emitted, request = commit.emitted, commit.work.request
            if request.id in self.known and (taps or (emitted and request.id not in self._asleep)):
                try:
                    self._drafter.observe(
                        Observation(
                            id=request.id,
                            committed=emitted.token_ids if emitted else (),
                            proposal=commit.proposal,
                            path=commit.path,
                            taps=_kept_taps(commit, row, taps) if taps else None,
                        )
                    )
                except Exception as error:
                    self._suspect(error)
            if taps:
                row += commit.rows
            if emitted and emitted.finish_reason:
                self.end(request)

    def end(self, request: Request) -> None:
        """Let the drafter forget a request, if it ever heard of it."""
        if self.known.pop(request.id, None):
            del self._views[request.id]
            try:
                self._drafter.end(request.id)
            except Exception as error:
                self._suspect(error)

    def _begin(self, request: Request) -> None:
        self.known[request.id] = request
        view = self._views[request.id] = DraftRequest(
            id=request.id,
            tokens=request.tokens,
            prompt_length=len(request.prompt),
            prediction=request.prediction,
            constrained=request.constraint is not None,
            speculation=request.speculation,
            reuse=request.reuse,
            most=0,
            params=request.params,
        )
        try:
            self._drafter.begin(view)
        except Exception as error:
            self._suspect(error)

    def _view(self, work: Work, rows: int, asleep: int) -> DraftRequest:
        """What the drafter is told in this step. To make one anew each time takes several microseconds."""
        request = work.request
        view = self._views[request.id]
        view.most, view.rows, view.asleep, view.noise = work.most, rows, asleep, request.noise
        if request.constraint:
            view.forced = tuple(request.constraint.forced())
        return view

    def _usable(self, answer: Proposal, work: Work) -> Proposal:
        """What of an answer can be sent to verification."""
        try:
            proposal, fault = sanitise(answer, work.most, self._vocabulary)
            if fault:
                self._suspect(ValueError(fault))
            return legal_part(proposal, work.request.constraint) if work.request.constraint else proposal
        except Exception as error:
            self._suspect(error)
            return EMPTY

    def _suspect(self, error: Exception) -> None:
        """Do without what failed, and say so once."""
        if not self._suspected:
            self._suspected = True
            log.warning(
                "drafter %s: %s: %s; the text is not affected, and further faults are not reported",
                self._drafter.name,
                type(error).__name__,
                error,
            )


def sanitise(proposal: Proposal, most: int, vocabulary: int) -> tuple[Proposal, str]:
    """The first nodes of a proposal, at most `most`, up to the first impossible one; and what is wrong ("": nothing).

    No cut looks at a token that could have been drawn, which would bias rejection and block: `most` was fixed before
    the drafter was asked. Whether q is a distribution is left to the acceptance rule, which reads all of it anyway.
    Raises TypeError for a token or parent that is no integer.
    """
    count = len(proposal.tokens)
    if not count == len(proposal.parents) == len(proposal.estimates) == len(proposal.q):
        return EMPTY, "tokens, parents, estimates and q are not equally long"
    if not count:
        return DECLINED if proposal.declined else EMPTY, ""
    fault = f"{count} nodes, {most} are allowed" if count > most else ""
    tokens: list[int] = []
    parents: list[int] = []
    for node in range(min(count, most)):
        token, parent, q = index(proposal.tokens[node]), index(proposal.parents[node]), proposal.q[node]
        if not 0 <= token < vocabulary:  # no q over the vocabulary can give it, so no honest draw is cut by its token
            fault = f"token {token}, the vocabulary has 0 to {vocabulary - 1}"
        elif not ROOT <= parent < node:
            fault = f"node {node} has parent {parent}, allowed are {ROOT} to {node - 1}"
        elif q is not None and not (isinstance(q, np.ndarray) and q.dtype == np.float64 and q.shape == (vocabulary,)):
            fault = f"q of node {node} is no float64 array of {vocabulary} probabilities"
        else:
            tokens.append(token)
            parents.append(parent)
            continue
        break
    kept = len(tokens)
    estimates, laws = tuple(proposal.estimates[:kept]), tuple(proposal.q[:kept])
    return Proposal(tuple(tokens), tuple(parents), str(proposal.drafter), estimates, laws), fault


def _kept_taps(commit: Commit, first: int, taps: Mapping[int, FloatArray]) -> Taps:
    """The rows of a commit's stretch and of its accepted path; `first` is the row of the stretch's first token."""
    work, kept = commit.work, commit.kept
    nodes = first + work.end - work.start  # the row of node 0
    last = nodes + len(kept)
    rows = slice(first, last) if kept == tuple(range(len(kept))) else [*range(first, nodes), *(nodes + n for n in kept)]
    return Taps(work.start, {layer: values[rows] for layer, values in taps.items()})
