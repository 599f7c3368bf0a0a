"""A head with random weights, hidden states that depend on the whole path, and what a drafter has kept of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from outrider.cache import key_places, value_places
from outrider.drafters.base import Drafter, DraftRequest, Observation, RequestView, Taps
from outrider.drafters.eagle import EagleDrafter
from outrider.heads import DraftHead
from outrider.heads.checkpoint import Head, read_official
from outrider.heads.model import record_fuser, record_layer
from outrider.kernels.native import NativeProgram
from outrider.types import EMPTY, FloatArray, Proposal
from outrider.weights.weight import Weight
from tests.heads.tiny_head import HIDDEN, VOCABULARY
from tests.kernels.workbench import random, weight

LAYERS = (2, 3, 4)
EMBEDDING = weight("embedding", random(1, VOCABULARY, HIDDEN))


def draft_head(folder: Path, embedding: Weight = EMBEDDING) -> DraftHead:
    return on_kernels(read_official(folder), embedding)


def on_kernels(head: Head, embedding: Weight) -> DraftHead:
    fuser = NativeProgram(record_fuser(head), threads=1)
    return DraftHead(head, fuser, NativeProgram(record_layer(head, embedding), beside=fuser))


@lru_cache(maxsize=10_000)
def state(path: tuple[int, ...]) -> FloatArray:
    """The hidden states of the last position of a path, [layers, hidden]."""
    return np.random.default_rng(path).standard_normal((len(LAYERS), HIDDEN), np.float32)


def taps(tokens: Sequence[int], start: int, end: int) -> Taps:
    states = np.stack([state(tuple(tokens[: position + 1])) for position in range(start, end)])
    return Taps(start, {layer: states[:, i].copy() for i, layer in enumerate(LAYERS)})


class Session:
    """One request as an engine would lead it through a drafter, with hidden states that are made up."""

    def __init__(self, drafter: Drafter, prompt: Sequence[int], *, request_id: int = 1, chunk: int = 1000) -> None:
        self.id, self.drafter, self.tokens = request_id, drafter, list(prompt)
        self.prompt_length = len(prompt)
        drafter.begin(RequestView(id=request_id, tokens=self.tokens, prompt_length=len(prompt)))
        for start in range(0, len(prompt), chunk):
            self.tell(start, min(start + chunk, len(prompt)))
        self.tokens.append(0)

    def tell(self, start: int, end: int, proposal: Proposal = EMPTY, path: tuple[int, ...] = ()) -> None:
        states = taps(self.tokens, start, end)
        self.drafter.observe(Observation(id=self.id, committed=(), proposal=proposal, path=path, taps=states))
        for values in states.layers.values():
            values.fill(np.nan)  # they were valid for that call only

    def request(self, most: int = 5) -> DraftRequest:
        return DraftRequest(id=self.id, tokens=self.tokens, prompt_length=self.prompt_length, most=most)

    def commit(self, proposal: Proposal, accepted: int, token: int) -> None:
        """The first nodes of a chain are accepted, and a token follows."""
        start = len(self.tokens) - 1
        self.tokens += [*proposal.tokens[:accepted], token]
        self.tell(start, len(self.tokens) - 1, proposal, tuple(range(accepted)))


def kept(drafter: EagleDrafter, request_id: int = 1) -> tuple[FloatArray, FloatArray]:
    """Keys and values of all committed entries, [positions, heads, words or codes], without their scales."""
    text, cache = drafter._texts[request_id], drafter._cache
    slots = np.array(text.entries.slots(range(text.computed)), int)
    return cache.keys[key_places(slots)][:, 0], cache.values[value_places(slots)][:, 0]


def fresh(head: DraftHead, tokens: Sequence[int], states: Taps, request: DraftRequest) -> tuple[EagleDrafter, Proposal]:
    """Another drafter that is given a request's whole past at once, and its proposal."""
    drafter = EagleDrafter(head, LAYERS if set(states.layers) == set(LAYERS) else tuple(states.layers), positions=1024)
    drafter.begin(RequestView(id=request.id, tokens=tokens, prompt_length=request.prompt_length))
    drafter.observe(Observation(id=request.id, committed=(), proposal=EMPTY, path=(), taps=states))
    return drafter, drafter.propose([request])[0]


class Audited(Drafter):
    """A drafter under watch in an engine: each proposal must be that of a fresh one with the same past.

    faults  what was found; a drafter's exceptions would end at the engine's guard.
    """

    name = "audited"

    def __init__(self, drafter: EagleDrafter, head: DraftHead, layers: Sequence[int]) -> None:
        self.faults: list[str] = []
        self.proposals = 0
        self.again = 0  # positions whose hidden states came more than once
        self._drafter, self._head, self._layers = drafter, head, layers
        self._states: dict[int, list[Mapping[int, FloatArray]]] = {}

    def begin(self, request: RequestView) -> None:
        self._states[request.id] = []
        self._drafter.begin(request)

    def observe(self, observation: Observation) -> None:
        states, taps = self._states[observation.id], observation.taps
        if taps is None:
            self.faults.append("no taps")
            return
        count = len(taps.layers[self._layers[0]])
        for row in range(count):
            here = {layer: values[row].copy() for layer, values in taps.layers.items()}
            position = taps.start + row
            if position < len(states):
                self.again += 1
                if any((here[layer] != states[position][layer]).any() for layer in here):
                    self.faults.append(f"other hidden states of position {position}")
            elif position == len(states):
                states.append(here)
            else:
                self.faults.append(f"position {len(states)} was left out")
        self._drafter.observe(observation)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        proposals = self._drafter.propose(requests)
        for request, proposal in zip(requests, proposals, strict=True):
            states = self._states[request.id]
            if len(states) != len(request.tokens) - 1:
                self.faults.append(f"{len(states)} hidden states for {len(request.tokens)} tokens")
            if proposal:
                self.proposals += 1
                whole = Taps(0, {layer: np.stack([state[layer] for state in states]) for layer in self._layers})
                drafter = EagleDrafter(self._head, self._layers, positions=1024, k=len(proposal))
                drafter.begin(request)
                drafter.observe(Observation(id=request.id, committed=(), proposal=EMPTY, path=(), taps=whole))
                expected = drafter.propose([request])[0]
                if (expected.tokens, expected.estimates) != (proposal.tokens, proposal.estimates):
                    self.faults.append(f"after {len(request.tokens)} tokens: {proposal.tokens}, not {expected.tokens}")
        return proposals

    def end(self, request_id: int) -> None:
        self._states.pop(request_id, None)
        self._drafter.end(request_id)
