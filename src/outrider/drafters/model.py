"""Draft and target (Leviathan et al. 2023, arXiv 2211.17192): a smaller model with the same vocabulary writes ahead.

It has a KV cache of its own. Between steps that holds the committed text and what was drafted last; what of that came
true is kept, so that each pass computes only tokens that are new to it. Texts that begin alike share it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from outrider.cache import KVCache, KVSequence
from outrider.drafters.base import Drafter, DraftRequest, RequestView
from outrider.errors import NumericError, UnsupportedModelError
from outrider.kernels.native import NativeModel
from outrider.models import record
from outrider.models.base import CausalLM
from outrider.randomness import Purpose
from outrider.sampling import Distribution, History, adjusted, allowed_mask, distribution
from outrider.tokenizer import Tokenizer
from outrider.types import EMPTY, DoubleArray, FloatArray, Proposal
from outrider.weights.gguf import GGUF

log = logging.getLogger(__name__)

CHUNK = 256
"""Most committed tokens that are taken in before a proposal; a longer text takes several steps, without drafts."""


def load(path: Path, target: NativeModel, tokenizer: Tokenizer, *, positions: int) -> ModelDrafter:
    """The draft model in a GGUF file, on the target's threads. For the arguments see `drafters.open_draft`.

    Raises ModelError if the file is broken, or its vocabulary is not the target's.
    """
    gguf = GGUF.open(path)
    own = Tokenizer.from_metadata(gguf.metadata, str(path))
    if difference := tokenizer.difference(own):
        raise UnsupportedModelError(f"{difference}; a draft model needs the target's own vocabulary")
    recorded = record(gguf)
    context = min(recorded.context_length, target.context_length)
    model = NativeModel(recorded.program, context_length=context, kv_shape=recorded.kv_shape, beside=target)
    log.info("draft model %s: context %d, the target's is %d", path, context, target.context_length)
    return ModelDrafter(
        model,
        KVCache(recorded.kv_shape, KVCache.blocks_for(positions)),
        vocabulary=target.vocabulary_size,
        shared=min(tokenizer.vocabulary_size, own.vocabulary_size),
        eos_ids=tokenizer.eos_ids,
        cost=model.weight_bytes / target.weight_bytes,  # passes of few rows are bound by memory
    )


@dataclass(slots=True)
class _Text:
    """What the draft model has computed of one request: committed tokens, then `tail`, the last that it drafted.

    keys  the committed tokens, if others may have what is computed of them.
    """

    history: History
    tokens: Sequence[int]
    keys: Sequence[int]
    kv: KVSequence = field(default_factory=KVSequence)
    tail: list[int] = field(default_factory=list)
    stopped: bool = False


@dataclass(slots=True)
class _Chain:
    """A proposal in the making, of `count` tokens in the end."""

    request: DraftRequest
    text: _Text
    count: int
    tokens: list[int] = field(default_factory=list)
    estimates: list[float] = field(default_factory=list)
    q: list[DoubleArray | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Tokens for one pass; see `outrider.cache.paged.Stretch`."""

    sequence: KVSequence
    tokens: Sequence[int]
    wanted: bool


class ModelDrafter(Drafter):
    """Chains of at most k tokens, or the length that is asked for, drawn from the draft model under the request's own
    sampling parameters.

    Under rejection and block, a node's q is the vector it was drawn from; under coupled acceptance the draft is drawn
    with the target's noise, and under greedy it is the most probable token: neither leaves anything to chance.

    A node's estimate is the probability of the most probable token, as the draft model sees it: it looks at q's shape,
    never at what was drawn.

    stopped  how often drafting ended for a request, by reason: "context", the draft model's is shorter than the text.
             The text goes on without drafts.
    """

    name = "model"
    draws = True

    def __init__(
        self,
        model: CausalLM,
        cache: KVCache,
        *,
        vocabulary: int,
        shared: int | None = None,
        eos_ids: Sequence[int] = (),
        k: int = 4,
        chunk: int = CHUNK,
        cost: float = 0.0,
    ) -> None:
        """A drafter of such a model.

        cache       its own; nothing else may use it. Where it is full, texts that are not asked for lose their place.
        vocabulary  number of the target's logits, which every q has.
        shared      ids below it mean the same to both models, others are never drafted; None: all that both have.
        eos_ids     tokens that end a text, which min_tokens keeps away.
        cost        time of one drafted token, in one-row passes of the target.
        """
        self._model = model
        self._cache = cache
        self._vocabulary = vocabulary
        self._shared = min(model.vocabulary_size, vocabulary, vocabulary if shared is None else shared)
        self._eos_ids = frozenset(eos_ids)
        self._k = k
        self._chunk = chunk
        self.cost = cost
        self.stopped: Counter[str] = Counter()
        self._texts: dict[int, _Text | None] = {}

    def begin(self, request: RequestView) -> None:
        self._texts[request.id] = None  # nothing is computed before a proposal is wanted

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        chains = [self._start(request) for request in requests]
        drafting = [chain for chain in chains if chain.count > 0]
        self._make_room(drafting)
        logits = self._catch_up(drafting)
        while drafting := [chain for chain in drafting if len(chain.tokens) < chain.count]:
            for chain, row in zip(drafting, logits, strict=True):
                self._draw(chain, row)
            drafting = [chain for chain in drafting if len(chain.tokens) < chain.count]
            # The last token of a chain is not computed: nobody asks what comes after it.
            logits = self._forward([(chain.text, chain.tokens[-1:], True) for chain in drafting])
            for chain in drafting:
                chain.text.tail.append(chain.tokens[-1])
        return [Proposal.chain(c.tokens, self.name, c.estimates, c.q) if c.tokens else EMPTY for c in chains]

    def end(self, request_id: int) -> None:
        if text := self._texts.pop(request_id, None):
            self._let_go(text)

    def _start(self, request: DraftRequest) -> _Chain:
        """An empty chain, for a text of which all that is computed is committed."""
        text = self._texts[request.id]
        if text is None:
            stop_ids = frozenset(request.params.stop_token_ids)
            stop_ids |= frozenset() if request.params.ignore_eos else self._eos_ids
            allowed = allowed_mask(request.params, self._vocabulary)
            history = History(request.tokens, request.prompt_length, stop_ids, allowed)
            text = _Text(history, request.tokens, request.tokens if request.reuse else ())
            self._texts[request.id] = text
        self._keep(text)
        room = self._model.context_length - len(request.tokens) + 1
        if room > 0 and not text.kv.length:
            self._cache.adopt(text.kv, text.keys[:-1])
        if room <= 0 and not text.stopped:
            text.stopped = True
            self.stopped["context"] += 1
            self._let_go(text)
            log.info("request %d outgrew the draft model's context (%d)", request.id, self._model.context_length)
        return _Chain(request, text, min(request.limit(self._k), room))

    def _keep(self, text: _Text) -> None:
        """Keep of what is computed what is committed by now, and let others know of it."""
        tokens = text.tokens
        kept = text.kv.length - len(text.tail)
        for token in text.tail:
            if kept == len(tokens) or tokens[kept] != token:
                break
            kept += 1
        # The last committed token is computed anew even if it was drafted: its logits are needed.
        self._cache.commit(text.kv, min(kept, len(tokens) - 1), ())
        text.tail.clear()
        self._cache.remember(text.kv, text.keys)

    def _let_go(self, text: _Text) -> None:
        """Give back the KV of a text; it stays as long as there is room."""
        self._keep(text)
        self._cache.release(text.kv, text.keys)

    def _make_room(self, chains: list[_Chain]) -> None:
        """Free the KV of texts that are not asked for, longest first, and then drop chains, until the rest fits."""

        def missing() -> int:
            return sum(self._cache.missing(c.text.kv, len(c.request.tokens) + c.count - 1) for c in chains)

        asked = {id(chain.text) for chain in chains}
        others = sorted((t for t in self._texts.values() if t and id(t) not in asked), key=lambda t: t.kv.length)
        while others and missing() > self._cache.pool.free:
            self._let_go(others.pop())
        while chains and missing() > self._cache.pool.free:
            chain = chains.pop()
            chain.count = 0
            self._let_go(chain.text)

    def _catch_up(self, chains: list[_Chain]) -> list[FloatArray]:
        """Compute committed tokens, `chunk` at most; logits after the last of each chain that got so far.

        The list is put in order, and chains that are still behind are taken off it: they propose nothing this time.
        """
        chains.sort(key=lambda chain: len(chain.request.tokens) - chain.text.kv.length)
        work, budget = [], self._chunk
        for chain in chains:
            tokens, start = chain.request.tokens, chain.text.kv.length
            end = min(len(tokens), start + budget)
            budget -= end - start
            if end < len(tokens):
                chain.count = 0
            if end > start:
                work.append((chain.text, tokens[start:end], chain.count > 0))
        chains[:] = [chain for chain in chains if chain.count]
        return self._forward(work)

    def _forward(self, work: Sequence[tuple[_Text, Sequence[int], bool]]) -> list[FloatArray]:
        """One pass over new tokens of some texts, which are then computed; the logits of each wanted last one."""
        if not work:
            return []
        stretches = [_Stretch(text.kv, list(tokens), wanted) for text, tokens, wanted in work]
        try:
            rows = self._cache.reserve(stretches, [EMPTY] * len(work))
            logits = self._model.forward(rows, self._cache).logits
        except BaseException:
            for stretch in stretches:
                self._cache.trim(stretch.sequence)
            raise
        for stretch in stretches:
            self._cache.commit(stretch.sequence, stretch.sequence.length + len(stretch.tokens), ())
        return list(logits)

    def _draw(self, chain: _Chain, logits: FloatArray) -> None:
        """Append the token that the draft model writes next; where its logits give none, the chain ends.

        To drop what was drawn before would be to look at it: these logits depend on it.
        """
        request, depth = chain.request, len(chain.tokens)
        row = self._in_target_ids(logits)
        row = adjusted(row, request.params, chain.text.history, chain.tokens)
        try:
            law = distribution(row, request.params)
        except NumericError:
            chain.count = depth
            return
        noise = request.noise.ahead(depth)
        q = None
        if request.params.temperature == 0:
            token = int(law.ids[0])
            estimate = 1 / float(np.exp(row - row[token]).sum())
        elif request.params.rule == "coupled":
            token = law.draw_coupled(noise)
            estimate = float(law.weights.max()) / law.total
        else:
            law = Distribution(law.ids, law.p)  # in double precision, so that the draw is from q itself
            token = law.draw(noise.uniform(Purpose.DRAFT))
            q = law.dense(self._vocabulary)
            estimate = float(law.weights.max())
        chain.tokens.append(token)
        chain.estimates.append(estimate)
        chain.q.append(q)

    def _in_target_ids(self, logits: FloatArray) -> FloatArray:
        """A row over the target's ids; -inf where the two models do not share one."""
        if self._shared == self._vocabulary:
            return logits[: self._vocabulary]
        row = np.full(self._vocabulary, -np.inf, np.float32)
        row[: self._shared] = logits[: self._shared]
        return row
