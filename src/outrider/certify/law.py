"""The law of sampled texts, by exact enumeration: every text of three tokens from a vocabulary of three is counted
through the real engine, its scheduler, guard, policy, cache and rollback included, and compared with its probability.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, product
from typing import Any

import numpy as np

from outrider import verify
from outrider.certify import reference
from outrider.certify.rig import Draft, Fault, FunctionDrafter, Parts, Rig, spread
from outrider.certify.scripted import Letters, ScriptedModel
from outrider.certify.statistics import UNDRAFTED, Fit, draws_for, fit
from outrider.drafters.base import DraftRequest
from outrider.policy.controller import Controller
from outrider.policy.costs import FREE, Costs
from outrider.randomness import Noise, Purpose
from outrider.request import Emitted, Request
from outrider.sampling import SamplingParams
from outrider.tokenizer import Detokeniser
from outrider.types import ROOT, DoubleArray, FloatArray, Proposal

VOCABULARY, LENGTH = 3, 3

PROMPT = (1,)
OPENING = 2
"""The first token is certain, since a request drafts only after it: all the tokens that are counted may be drafted."""

DEPTH = 3

TARGET, GUESS = 12, 13
"""Seeds of the laws of target and drafters. Always the same: with some laws some faults hardly show (of 16 pairs that
were tried, one random number for two purposes shows in 8), and with these each planted fault does, clearly.
"""

BATCH, QUEUE = 32, 512

Path = tuple[int, ...]
Laws = Callable[[Path], DoubleArray]


@dataclass(frozen=True, slots=True)
class LawSetting:
    """What one test of the law runs: names of a rule, a kind of drafter, a sampling rule, a policy (see `factors`)."""

    rule: str
    drafter: str
    sampling: str
    policy: str = "all that is drafted"


@dataclass(frozen=True, slots=True)
class LawCell:
    """The verdict on one setting. fault: why this shows nothing ("": it does)."""

    setting: LawSetting
    fit: Fit | None
    accepted: int
    fault: str = ""

    @property
    def holds(self) -> bool:
        """Whether texts were counted, drafts among them, and no bias is seen."""
        return self.fit is not None and self.fit.holds and not self.fault

    @property
    def evidence(self) -> str:
        """The verdict in words."""
        return self.fault or (self.fit.in_words if self.fit else "")


SAMPLINGS: Mapping[str, Mapping[str, Any]] = {
    "temperature 1": {},
    "temperature 0.6": {"temperature": 0.6},
    "top-k 2": {"top_k": 2},
    "top-p 0.8": {"top_p": 0.8},
    "min-p 0.3, temperature 1.5": {"min_p": 0.3, "temperature": 1.5},
    "bias and penalties": {
        "logit_bias": {0: 0.5},
        "repetition_penalty": 1.5,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.6,
    },
}
"""What each sampling rule asks of `SamplingParams`."""


POLICIES: Mapping[str, Costs] = {
    "all that is drafted": FREE,
    "what pays": Costs((1, 2), (0,), ((1.0, 1.0004),)),
}
"""What rows cost. Where they do, how many tokens are drafted depends on what was accepted before: here two after a step
that refused one, all after one that refused none.
"""


def factors() -> dict[str, list[str]]:
    """The values of each field of a setting. Every acceptance rule that exists and draws is among them."""
    rules = [name for name in verify.available() if name != "greedy"]
    return {"rule": rules, "drafter": list(DRAFTERS), "sampling": list(SAMPLINGS), "policy": list(POLICIES)}


def check(setting: LawSetting, *, bias: float, level: float, seed: int, fault: Fault | None = None) -> LawCell:
    """Count as many texts as make `bias` the smallest that is seen, and test them; with a planted fault, if given."""
    params = sampling_params(setting)
    law = exact_law(target_logits, params)
    draws = draws_for(bias, sum(p > 0 for p in law.values()) - 1, level)
    draft = DRAFTERS[setting.drafter](guessed_law)
    model = ScriptedModel(target_logits, vocabulary=VOCABULARY)
    drafter = FunctionDrafter(setting.drafter, draft, draws=True)
    parts = Parts(model, Controller([drafter], POLICIES[setting.policy]))
    params = replace(params, seed=spread(seed, setting))
    try:
        counts, accepted = count(fault(parts) if fault else parts, params, draws)
    except Exception as error:
        return LawCell(setting, None, 0, f"{type(error).__name__}: {error}")
    return LawCell(setting, fit(counts, law, level), accepted, "" if accepted else UNDRAFTED)


def count(parts: Parts, params: SamplingParams, draws: int) -> tuple[Counter[Path], int]:
    """How often each text came after the opening, and how many drafted tokens were accepted."""
    counts: Counter[Path] = Counter()
    accepted = 0
    rig = Rig(parts, blocks=2 * BATCH, make_detokeniser=lambda: Detokeniser(_LETTERS), max_batch=BATCH)
    for start in range(0, draws, QUEUE):
        requests = [Request(PROMPT, params, choice) for choice in range(start, min(start + QUEUE, draws))]
        rig.run(requests, lambda emitted: _cancel_counted(rig, emitted))
        counts.update(tuple(request.output[1 : 1 + LENGTH]) for request in requests)
        accepted += sum(request.stats.accepted for request in requests)
    return counts, accepted


def _cancel_counted(rig: Rig, emitted: Emitted) -> None:
    """End a text of which the rest is not counted."""
    if emitted.finish_reason is None and emitted.request.completion_tokens > LENGTH:
        rig.engine.cancel(emitted.request)


def sampling_params(setting: LawSetting) -> SamplingParams:
    """The parameters of a setting. Texts are one token longer than what is counted, so that a whole chain fits in."""
    values: dict[str, Any] = {
        "temperature": 1.0,
        "max_tokens": 1 + LENGTH + 1,
        "acceptance": setting.rule,
        **SAMPLINGS[setting.sampling],
    }
    return SamplingParams(**values)


def exact_law(logits: Callable[[Path], FloatArray], params: SamplingParams) -> dict[Path, float]:
    """The probability of each text of LENGTH tokens after prompt and opening."""
    law = {}
    for text in product(range(VOCABULARY), repeat=LENGTH):
        probability = 1.0
        for place, token in enumerate(text):
            output = (OPENING, *text[:place])
            probability *= reference.law(logits((*PROMPT, *output)), params, PROMPT, output)[token]
        law[text] = probability
    return law


@lru_cache(maxsize=10_000)
def target_law(path: Path) -> DoubleArray:
    """What the target says after a path."""
    return _random_law(path, TARGET)


@lru_cache(maxsize=10_000)
def guessed_law(path: Path) -> DoubleArray:
    """What the drafters think that it says."""
    return _random_law(path, GUESS)


@lru_cache(maxsize=10_000)
def target_logits(path: Path) -> FloatArray:
    """The target's logits after a path: the opening for certain, then those of its law."""
    if path == PROMPT:
        return np.where(np.arange(VOCABULARY) == OPENING, np.float32(0), np.float32(-np.inf))
    return np.log(target_law(path)).astype(np.float32)


def _random_law(path: Path, seed: int) -> DoubleArray:
    """Skewed, so that two of them disagree, and without very rare tokens."""
    chance = np.random.default_rng([seed, *path])
    law: DoubleArray = 0.1 + (1 - 0.1 * VOCABULARY) * chance.dirichlet([0.8] * VOCABULARY)
    return law


def _drawn(laws: Laws, flattest: float = 0.0) -> Draft:
    """A chain, each token drawn from q after the one before; it ends before a q whose peak is below `flattest`."""

    def draft(request: DraftRequest) -> Proposal:
        path = tuple(request.tokens)
        tokens: list[int] = []
        q: list[DoubleArray] = []
        while len(tokens) < min(DEPTH, request.most) and (law := laws((*path, *tokens))).max() >= flattest:
            tokens.append(_draw(law, request.noise.ahead(len(tokens))))
            q.append(law)
        return Proposal.chain(tokens, "drawn", q=q)

    return draft


def _cautious(laws: Laws) -> Draft:
    """A chain that ends where its drafter is unsure: its length depends on q, and not on what is drawn from it."""
    return _drawn(laws, flattest=0.55)


def _skewed(laws: Laws) -> Draft:
    """A chain drawn from a q that mostly says the one token it likes best."""

    @lru_cache(maxsize=10_000)
    def skewed(path: Path) -> DoubleArray:
        law = np.full(VOCABULARY, 0.05)
        law[laws(path).argmax()] += 1 - law.sum()
        return law

    return _drawn(skewed)


def _chosen(laws: Laws) -> Draft:
    """A chain chosen without chance: the most probable tokens of q."""

    def draft(request: DraftRequest) -> Proposal:
        tokens: list[int] = []
        for _ in range(min(DEPTH, request.most)):
            tokens.append(int(laws((*request.tokens, *tokens)).argmax()))
        return Proposal.chain(tokens, "one-hot")

    return draft


def _drawn_tree(laws: Laws) -> Draft:
    """Two siblings drawn without replacement, each with a drawn child; the path of the second has to be moved."""

    def draft(request: DraftRequest) -> Proposal:
        path, noise = tuple(request.tokens), request.noise
        first = _draw(laws(path), noise)
        rest = laws(path).copy()
        rest[first] = 0
        rest /= rest.sum()
        second = _draw(rest, noise, sibling=1)
        q = (laws(path), laws((*path, first)), rest, laws((*path, second)))
        tokens = (first, _draw(q[1], noise.ahead(1)), second, _draw(q[3], noise.ahead(1), sibling=1))
        return Proposal(tokens, (ROOT, 0, ROOT, 2), "drawn tree", (1.0,) * 4, q).cut(request.most)

    return draft


def _chosen_tree(laws: Laws) -> Draft:
    """The two most probable tokens of q, and under the second two more."""

    def draft(request: DraftRequest) -> Proposal:
        path = tuple(request.tokens)
        first, second = np.argsort(-laws(path), kind="stable")[:2].tolist()
        below = np.argsort(-laws((*path, second)), kind="stable")[:2].tolist()
        tokens = (first, second, *below)
        return Proposal(tokens, (ROOT, ROOT, 1, 1), "one-hot tree", (1.0,) * 4, (None,) * 4).cut(request.most)

    return draft


def _draw(law: DoubleArray, noise: Noise, sibling: int = 0) -> int:
    """A drafter's draw, with the number that is meant for it."""
    sums = list(accumulate(law.tolist()))
    return bisect_right(sums, noise.uniform(Purpose.DRAFT, sibling) * sums[-1])


DRAFTERS: Mapping[str, Callable[[Laws], Draft]] = {
    "drawn": _drawn,
    "cautious": _cautious,
    "skewed": _skewed,
    "one-hot": _chosen,
    "drawn tree": _drawn_tree,
    "one-hot tree": _chosen_tree,
}
"""Kinds of drafters, each made of the laws that it guesses with."""

_LETTERS = Letters()
