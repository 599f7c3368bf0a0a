"""Planted faults: each takes one of an engine's parts and puts a faulty one in its place.

All of them were reported of decoders that people use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from outrider.cache import BLOCK, KVCache, KVSequence
from outrider.cache.paged import RUN, Stretch
from outrider.cache.prefix import Key
from outrider.certify.rig import Altered, Parts
from outrider.drafters.base import DraftRequest
from outrider.models.base import CausalLM, KVShape
from outrider.randomness import Noise, Purpose
from outrider.sampling import Distribution, History, SamplingParams, adjusted, distribution
from outrider.types import EMPTY, ROOT, DoubleArray, FloatArray, Outcome, Output, Proposal, Rows
from outrider.verify import Verify


def q_before_filters(parts: Parts) -> Parts:
    """Tokens are drawn from the likeliest half of q, and q is reported whole."""

    def alter(proposal: Proposal, request: DraftRequest) -> Proposal:
        tokens = []
        for node, (token, q) in enumerate(zip(proposal.tokens, proposal.q, strict=True)):
            if q is not None:
                sums = np.where(q > np.median(q) - 1e-12, q, 0.0).cumsum()
                uniform = request.noise.ahead(node).uniform(Purpose.DRAFT)
                token = int(sums.searchsorted(uniform * sums[-1], side="right"))
            tokens.append(token)
        return replace(proposal, tokens=tuple(tokens))

    return replace(parts, drafter=Altered(parts.drafter, alter))


def argmax_as_if_drawn(parts: Parts) -> Parts:
    """The drafter takes its most probable token, and reports the probability that it gave it."""

    def alter(proposal: Proposal, request: DraftRequest) -> Proposal:
        pairs = zip(proposal.tokens, proposal.q, strict=True)
        return replace(proposal, tokens=tuple(token if q is None else int(q.argmax()) for token, q in pairs))

    return replace(parts, drafter=Altered(parts.drafter, alter))


def peeking_cut(parts: Parts) -> Parts:
    """A policy ends a chain before the first token that its drafter gave less than half."""

    def alter(proposal: Proposal, request: DraftRequest) -> Proposal:
        for node, (token, q) in enumerate(zip(proposal.tokens, proposal.q, strict=True)):
            if q is not None and q[token] < 0.5:
                return proposal.cut(node)
        return proposal

    return replace(parts, drafter=Altered(parts.drafter, alter))


def peeking_policy(parts: Parts) -> Parts:
    """A policy asks for more than it wants, and stands aside if the first token that was drawn looks unlikely."""

    def alter(proposal: Proposal, request: DraftRequest) -> Proposal:
        token, q = next(zip(proposal.tokens, proposal.q, strict=True), (0, None))
        return EMPTY if q is not None and q[token] < q.max() else proposal

    return replace(parts, drafter=Altered(parts.drafter, alter))


def rows_off_by_one(parts: Parts) -> Parts:
    """Each row has the logits of the next one."""
    return replace(parts, target=_RowsOffByOne(parts.target))


class _RowsOffByOne:
    """A target whose rows have each other's logits."""

    def __init__(self, target: CausalLM) -> None:
        self._target = target
        self.vocabulary_size = target.vocabulary_size
        self.context_length = target.context_length
        self.kv_shape = target.kv_shape

    def forward(self, rows: Rows, cache: KVCache) -> Output:
        return Output(np.roll(self._target.forward(rows, cache).logits, -1, axis=0))


def kv_not_rolled_back(parts: Parts) -> Parts:
    """What a rejected draft left in the cache stands for the token that came in its place."""
    return replace(parts, cache=_NotRolledBack)


class _NotRolledBack(KVCache):
    """The first row after a rejection writes aside, and what the rejected draft wrote stays."""

    def __init__(self, shape: KVShape, blocks: int) -> None:
        super().__init__(shape, blocks + 1)
        self._aside = blocks * BLOCK  # the last block, which is taken when there is no other
        self._written: dict[int, int] = {}  # sequence -> one past the last index that was written

    def reserve(self, work: Sequence[Stretch], proposals: Sequence[Proposal]) -> Rows:
        starts = [stretch.sequence.length for stretch in work]
        rows = super().reserve(work, proposals)
        first = 0
        for number, (stretch, proposal, start) in enumerate(zip(work, proposals, starts, strict=True)):
            if self._written.get(id(stretch.sequence), 0) > start > 0:
                rows.slots[first] = self._aside + number % BLOCK
            self._written[id(stretch.sequence)] = start + len(stretch.tokens) + len(proposal)
            first += len(stretch.tokens) + len(proposal)
        return rows


def path_not_moved(parts: Parts) -> Parts:
    """The accepted path of a tree stays where it was computed, beside the place where it is read."""
    return replace(parts, cache=_NotMoved)


class _NotMoved(KVCache):
    """Commits without moving anything."""

    def commit(self, sequence: KVSequence, end: int, path: Sequence[int]) -> None:
        super().commit(sequence, end, range(len(path)))


def block_not_copied(parts: Parts) -> Parts:
    """The block in which a text departs from an earlier one is taken for known, and nothing is copied to its own."""
    return replace(parts, cache=_NotCopied)


class _NotCopied(KVCache):
    """Finds what was computed before, and hands on an empty block."""

    def adopt(self, sequence: KVSequence, keys: Sequence[Key]) -> int:
        count = super().adopt(sequence, keys)
        for block in sequence.blocks[len(sequence.path) :]:
            self.memory[block // RUN, :, :, block % RUN] = 0
        return count


def shared_number(parts: Parts) -> Parts:
    """One random number says whether a draft is accepted, and then which token comes instead."""
    return replace(
        parts,
        rule=lambda rule: _with_noise(rule, lambda n: _OneNumber(n.seed, n.choice, n.position, n.committed)),
    )


class _OneNumber(Noise):
    """Noise that has one number for all purposes and siblings."""

    def uniform(self, purpose: Purpose, sibling: int = 0) -> float:
        return super().uniform(Purpose.ACCEPT)


def reused_draws(parts: Parts) -> Parts:
    """Random numbers know their position but not their step: what was looked at and left comes again."""
    return replace(parts, rule=lambda rule: _with_noise(rule, lambda noise: replace(noise, committed=0)))


def penalties_once_a_step(parts: Parts) -> Parts:
    """All rows of a step are penalised for the committed tokens only, not for the drafts before them."""

    def plant(rule: Verify) -> Verify:
        def faulty(
            logits: FloatArray,
            proposal: Proposal,
            params: SamplingParams,
            noise: Noise,
            history: History,
            maxima: FloatArray | None = None,
        ) -> Outcome:
            penalised = np.stack([adjusted(row, params, history) for row in logits])
            plain = replace(params, logit_bias={}, repetition_penalty=1, presence_penalty=0, frequency_penalty=0)
            return rule(penalised, proposal, plain, noise, history)

        return faulty

    return replace(parts, rule=plant)


def softmax_residual(parts: Parts) -> Parts:
    """After a rejection the token is drawn from softmax(p - q), not from what is left of p - q, divided by its sum."""

    def draw(law: Distribution, token: int, q: DoubleArray | None) -> Distribution:
        taken = (law.ids == token).astype(float) if q is None else q[law.ids]
        weights = np.exp(np.maximum(law.p - taken, 0))
        return Distribution(law.ids, weights / weights.sum())

    return replace(parts, rule=lambda rule: _redrawn(rule, draw))


def drawn_from_p(parts: Parts) -> Parts:
    """After a rejection the token is drawn from p, not from what q left of it."""
    return replace(parts, rule=lambda rule: _redrawn(rule, lambda law, token, q: law))


def _with_noise(rule: Verify, change: Callable[[Noise], Noise]) -> Verify:
    """The rule, with other random numbers."""

    def faulty(
        logits: FloatArray,
        proposal: Proposal,
        params: SamplingParams,
        noise: Noise,
        history: History,
        maxima: FloatArray | None = None,
    ) -> Outcome:
        return rule(logits, proposal, params, change(noise), history, maxima)

    return faulty


def _redrawn(rule: Verify, left: Callable[[Distribution, int, DoubleArray | None], Distribution]) -> Verify:
    """The rule, where after the rejection of a chain's token the next one is drawn from left(p, token, q)."""

    def faulty(
        logits: FloatArray,
        proposal: Proposal,
        params: SamplingParams,
        noise: Noise,
        history: History,
        maxima: FloatArray | None = None,
    ) -> Outcome:
        outcome = rule(logits, proposal, params, noise, history, maxima)
        node = outcome.path[-1] if outcome.path else ROOT
        rejected = proposal.children(node)
        if not rejected:
            return outcome
        drafted = [proposal.tokens[each] for each in outcome.path]
        p = distribution(adjusted(logits[1 + node], params, history, drafted), params)
        law = left(p, proposal.tokens[rejected[0]], proposal.q[rejected[0]])
        return Outcome(outcome.path, law.draw(noise.ahead(len(outcome.path)).uniform(Purpose.RESIDUAL)))

    return faulty
