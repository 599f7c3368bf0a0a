"""An EAGLE-3 head (Li et al. 2025, arXiv 2503.01840) that drafts chains for all requests at once, a pass per depth.

The head's KV of committed tokens rests on the target's own hidden states: each proposal begins with a pass over the
positions that the target has computed since the last one; what was drafted beyond them is thrown away again. An entry
is a function of the text up to the next token, so texts that begin alike share theirs: they are known by pairs of a
token and the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from outrider import heads
from outrider.cache import KVCache, KVSequence
from outrider.drafters.base import Drafter, DraftRequest, Observation, RequestView, Taps
from outrider.errors import NumericError
from outrider.heads import DraftHead
from outrider.kernels.native import NativeModel
from outrider.randomness import Purpose
from outrider.sampling import Distribution, History, adjusted, allowed_mask, distribution, likeliest
from outrider.types import EMPTY, DoubleArray, FloatArray, Proposal
from outrider.weights.weight import Weight

CATCH_UP = 512
"""Most committed positions that the head reads in one step, of all requests together: a long prompt takes several."""

_FEW = 32  # rows of taps that a request keeps room for

_LEFT = 16
"""Most positions that are read when a text is over, for the sake of those that go on from it."""


def load(path: Path, target: NativeModel, embedding: Weight, *, positions: int) -> EagleDrafter:
    """The head in a folder or file, on the target's threads. For the arguments see `drafters.open_draft`.

    Raises ModelError if the files are broken, or the head is another model's.
    """
    head = heads.load(path)
    layers = heads.tap_layers(target.kv_shape.layers)
    model = heads.DraftHead.beside(target, embedding, head, target.vocabulary_size)
    # Passes of few rows are bound by memory.
    read = sum(w.raw.nbytes for name, w in head.matrices.items() if name not in (heads.EMBEDDING, heads.FUSER))
    return EagleDrafter(model, layers, positions=positions, cost=read / target.weight_bytes)


class EagleDrafter(Drafter):
    """Chains of at most k tokens, or the length that is asked for: the head's most probable ones for greedy requests,
    drawn ones for sampled requests.

    skipped  how often a request was not drafted for, by reason: "context" (once per request: it has outgrown the head's
             context), "catching up" (its prompt is not read yet), "room" (the head's KV cache is full).
    """

    name = "eagle"
    draws = True
    taps = True

    def __init__(
        self, head: DraftHead, layers: Sequence[int], *, positions: int, k: int = 5, cost: float = 0.0
    ) -> None:
        """layers: the target's taps that the head reads, in order; positions: what its KV cache holds at least."""
        self.skipped: Counter[str] = Counter()
        self.cost = cost
        self._head = head
        self._layers = tuple(layers)
        self._k = k
        self._cache = KVCache(head.kv_shape, KVCache.blocks_for(positions))
        self._texts: dict[int, _Text] = {}

    def begin(self, request: RequestView) -> None:
        self._texts[request.id] = _Text(3 * self._head.config.target_hidden, request)

    def observe(self, observation: Observation) -> None:
        text = self._texts[observation.id]
        taps = observation.taps
        if taps is None or text.outgrown:
            return
        if taps.start > text.origin + text.known:  # those between were in the target's prefix cache
            self._cache.release(text.entries, text.keys)
            text.restart(taps.start)
        text.add(taps, self._layers, self._head.config.context)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        proposals = [EMPTY] * len(requests)
        chains = self._chains(requests)
        try:
            self._draft(chains)
        finally:
            for chain in chains:
                chain.text.entries.length = chain.text.computed
                self._cache.trim(chain.text.entries)
                self._cache.remember(chain.text.entries, chain.text.keys)
        for chain in chains:
            if chain.tokens:
                proposals[chain.place] = Proposal.chain(chain.tokens, self.name, chain.estimates, chain.q)
        return proposals

    def end(self, request_id: int) -> None:
        text = self._texts.pop(request_id, None)
        if text is None:
            return
        try:
            self._read_rest(text)
        finally:
            self._cache.release(text.entries, text.keys)

    def _chains(self, requests: Sequence[DraftRequest]) -> list[_Chain]:
        """The requests that the head works on in this step, each with as many of its unread positions as have room."""
        chains = []
        drafting = [self._texts[request.id] for request in requests if request.most > 0]
        for place, request in enumerate(requests):
            text = self._texts[request.id]
            if text.new and text in drafting and not self._adopt(text, drafting):
                self.skipped["catching up"] += 1
                continue
            entries = len(request.tokens) - 1 - text.origin  # the last one tells the first drafted token
            k = min(request.limit(self._k), self._head.config.context - entries + 1)
            if k >= 1 and text.known == entries:
                chains.append(_Chain(place, request, text, k, text.known - text.computed))
            elif k < 1 <= request.most and not text.outgrown:
                self._cache.release(text.entries, text.keys)
                text.restart(text.origin)
                text.outgrown = True
                self.skipped["context"] += 1
        rows, free = CATCH_UP, self._cache.pool.free
        admitted = []
        for chain in sorted(chains, key=lambda chain: chain.rows):
            chain.rows = min(chain.rows, rows)
            if chain.rows == 0:
                self.skipped["catching up"] += 1
                continue
            missing = self._cache.missing(chain.text.entries, chain.text.computed + chain.rows + chain.k - 1)
            if missing > free:
                self.skipped["room"] += 1
                continue
            rows, free = rows - chain.rows, free - missing
            admitted.append(chain)
        return admitted

    def _draft(self, chains: Sequence[_Chain]) -> None:
        if not chains:
            return
        logits, hidden = self._read([chain.text for chain in chains], [chain.unread() for chain in chains])
        ready = [chain for chain in chains if chain.text.computed == chain.text.known]
        if len(ready) < len(chains):
            self.skipped["catching up"] += len(chains) - len(ready)
        if ready and all(chain.greedy for chain in ready):
            rows = self._cache.reserve([chain.ahead() for chain in ready], [EMPTY] * len(ready))
            for chain, (tokens, estimates) in zip(ready, self._head.draft(rows, self._cache), strict=True):
                chain.tokens, chain.estimates, chain.q = tokens, estimates, [None] * len(tokens)
            return
        while ready:
            drafted = [i for i, chain in enumerate(ready) if self._extend(chain, logits[i]) and chain.wants_more]
            ready = [ready[i] for i in drafted]
            if not ready:
                return
            rows = self._cache.reserve([chain.drafted() for chain in ready], [EMPTY] * len(ready))
            logits, hidden = self._head.forward(rows, self._cache, hidden[drafted])
            for chain in ready:
                chain.text.entries.length += 1

    def _adopt(self, text: _Text, drafting: Sequence[_Text]) -> bool:
        """Give a text that is new to the head the entries that others have left, if it then begins where the text does.

        The last one is computed in any case, for the sake of its logits. False: one of those that are drafted for is
        about to read what is missing, as another choice of the same request may be.
        """
        text.new = False
        reach = text.origin + text.known
        if not text.reuse or reach > self._head.config.context:
            return True
        found = self._cache.adopt(text.entries, list(pairwise(text.tokens[:reach])))
        if found >= text.origin:
            text.join(found)
            return True
        self._cache.release(text.entries)
        text.new = any(other.reads(text.tokens[: text.origin + 1]) for other in drafting)
        return not text.new

    def _read(self, texts: Sequence[_Text], stretches: Sequence[_Stretch]) -> tuple[FloatArray, FloatArray]:
        """Compute the entries of the next unread positions of some texts; gives what `DraftHead.forward` does."""
        rows = self._cache.reserve(stretches, [EMPTY] * len(stretches))
        taps = [text.unread(len(stretch.tokens)) for text, stretch in zip(texts, stretches, strict=True)]
        fused = self._head.fuse(rows, self._cache, taps[0] if len(taps) == 1 else np.concatenate(taps))
        output = self._head.forward(rows, self._cache, fused)
        for text, stretch in zip(texts, stretches, strict=True):
            text.read(len(stretch.tokens))
        return output

    def _read_rest(self, text: _Text) -> None:
        """Read the last few positions of a text that is over, if the head has drafted for it: the next turn of a
        conversation begins with them, and the target will not compute them again."""
        end = min(text.known, len(text.tokens) - 1)
        rest = text.tokens[text.computed + 1 : end + 1]
        if text.keys and 0 < len(rest) <= _LEFT and self._cache.missing(text.entries, end) <= self._cache.pool.free:
            self._read([text], [_Stretch(text.entries, rest, False)])

    def _extend(self, chain: _Chain, logits: FloatArray) -> bool:
        """Add the next token to a chain; False if these logits give none.

        Whether they do, and the estimate, must not depend on what is drawn.
        """
        request, depth, ids = chain.request, len(chain.tokens), self._head.target_ids
        params = request.params
        q: DoubleArray | None = None
        try:
            if params.adjusts or params.allowed_token_ids is not None or params.banned_token_ids:
                logits = self._adjusted(chain, logits)
            whole = len(logits) != len(ids)  # then its places are the target's ids
            if params.temperature == 0:
                place, estimate = likeliest(logits)
                token = place if whole else int(ids[place])
            else:
                law = distribution(logits, params)
                law = law if whole else Distribution(ids[law.ids], law.weights, law.total)
                estimate = float(law.weights.max()) / law.total
                noise = request.noise.ahead(depth)
                if params.rule == "coupled":
                    token = law.draw_coupled(noise)  # the rule reads no q
                else:
                    token = law.draw(noise.uniform(Purpose.DRAFT))
                    q = law.dense(self._head.config.vocabulary)
        except NumericError:
            return False
        chain.tokens.append(token)
        chain.estimates.append(estimate)
        chain.q.append(q)
        return True

    def _adjusted(self, chain: _Chain, logits: FloatArray) -> FloatArray:
        """The logits of the target's whole vocabulary, after the request's bias, masks and penalties."""
        request, vocabulary = chain.request, self._head.config.vocabulary
        if chain.text.history is None:
            allowed = allowed_mask(request.params, vocabulary)
            chain.text.history = History(request.tokens, request.prompt_length, (), allowed)
        whole = np.full(vocabulary, -np.inf, np.float32)
        whole[self._head.target_ids] = logits
        return adjusted(whole, request.params, chain.text.history, chain.tokens)


class _Text:
    """What the drafter holds of a request.

    tokens    the request's own; `reuse` as it says.
    origin    the position of entry 0: what comes before it, the head does not see. Rotary positions are relative, so
              entries count from 0.
    entries   the head's KV, during a proposal with that of drafted tokens.
    computed  entries that rest on the target's hidden states.
    known     how many could: positions from the origin on whose hidden states came.
    keys      what the computed ones depend on, if others may have them: those of the whole text.
    new       nothing is computed, and what others have left was not looked at.
    """

    __slots__ = (
        "_first", "_taps", "computed", "entries", "history", "keys", "known", "new", "origin", "outgrown", "reuse",
        "tokens",
    )  # fmt: skip

    def __init__(self, width: int, request: RequestView) -> None:
        self.tokens = request.tokens
        self.reuse = request.reuse
        self.entries = KVSequence()
        self.keys: list[tuple[int, int]] = []
        self.new = True
        self.origin = self.computed = self.known = 0
        self.outgrown = False
        self.history: History | None = None
        self._first = 0  # row of the taps of position `computed`
        self._taps = np.empty((_FEW, width), np.float32)

    def add(self, taps: Taps, layers: Sequence[int], most: int) -> None:
        """Keep the taps of positions that are new, as far as `most` entries reach."""
        skip = self.origin + self.known - taps.start
        rows = min(len(taps.layers[layers[0]]) - skip, most - self.known)
        if rows <= 0:
            return
        begin = self._first + self.known - self.computed
        if begin + rows > len(self._taps):
            held = self._taps[self._first : begin]
            self._first, begin = 0, len(held)
            self._taps = np.empty((2 * (begin + rows), held.shape[1]), np.float32)
            self._taps[:begin] = held
        width = self._taps.shape[1] // len(layers)
        for part, layer in enumerate(layers):
            self._taps[begin : begin + rows, part * width : (part + 1) * width] = taps.layers[layer][skip : skip + rows]
        self.known += rows

    def unread(self, rows: int) -> FloatArray:
        """The taps of the next positions that have no entry yet."""
        return self._taps[self._first : self._first + rows]

    def read(self, rows: int) -> None:
        """So many positions more have entries."""
        self.computed += rows
        if self.reuse and not self.origin:
            begin, end = len(self.keys), self.computed
            self.keys += zip(self.tokens[begin:end], self.tokens[begin + 1 : end + 1], strict=True)
        self.entries.length = self.computed
        self._first += rows
        if self.computed == self.known:
            self._first = 0
            if len(self._taps) > 8 * _FEW:
                self._taps = np.empty((_FEW, self._taps.shape[1]), np.float32)

    def reads(self, begin: Sequence[int]) -> bool:
        """Whether it is going to read a text that begins so from its beginning, for others too."""
        unread = self.computed < self.known and self.known >= len(begin) - 1
        return unread and self.reuse and not self.origin and self.tokens[: len(begin)] == begin

    def join(self, entries: int) -> None:
        """So many entries of the whole text are there: those before the origin, and some whose taps are not needed."""
        begin, self.origin = self.origin, 0
        self.computed, self.known = begin, begin + self.known
        self.read(entries - begin)

    def restart(self, origin: int) -> None:
        """Forget all: the head sees the text from that position on."""
        self.new = True
        self.keys.clear()
        self.origin = origin
        self.computed = self.known = self._first = 0
        self._taps = np.empty((_FEW, self._taps.shape[1]), np.float32)


@dataclass(slots=True)
class _Chain:
    """A proposal in the making, of at most k tokens, once `rows` unread positions are read."""

    place: int
    request: DraftRequest
    text: _Text
    k: int
    rows: int
    tokens: list[int] = field(default_factory=list)
    estimates: list[float] = field(default_factory=list)
    q: list[DoubleArray | None] = field(default_factory=list)

    @property
    def greedy(self) -> bool:
        """Whether its tokens are the head's most probable ones, whatever they are."""
        params = self.request.params
        free = params.allowed_token_ids is None and not params.banned_token_ids
        return params.temperature == 0 and not params.adjusts and free

    @property
    def wants_more(self) -> bool:
        return len(self.tokens) < self.k

    def unread(self) -> _Stretch:
        """The committed tokens after the unread positions."""
        text = self.text
        begin = text.origin + text.computed + 1
        wanted = text.computed + self.rows == text.known
        return _Stretch(text.entries, self.request.tokens[begin : begin + self.rows], wanted)

    def ahead(self) -> _Stretch:
        """Places for all that will be drafted but the last, which nobody goes on from."""
        return _Stretch(self.text.entries, [0] * (self.k - 1), False)

    def drafted(self) -> _Stretch:
        """The last drafted token."""
        return _Stretch(self.text.entries, self.tokens[-1:], True)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Tokens for one pass; see `outrider.cache.paged.Stretch`."""

    sequence: KVSequence
    tokens: Sequence[int]
    wanted: bool
