"""The law of drawn tokens on the user's own target: where do texts leave its most probable continuation, and with what?

Each text follows the continuation for a while and then leaves it. The probability of every such end is known from the
logits along the continuation alone, so it can be compared with how often the engine wrote it, speculatively.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from outrider import verify
from outrider.cache import KVCache, KVSequence
from outrider.certify import reference
from outrider.certify.drafters import OWN, as_tree
from outrider.certify.rig import Fault, FunctionDrafter, Parts, Rig, spread
from outrider.certify.statistics import UNDRAFTED, Fit, fit
from outrider.drafters.base import Drafter, DraftRequest
from outrider.llm import LLM
from outrider.models.base import CausalLM
from outrider.randomness import Purpose
from outrider.request import Emitted, Request
from outrider.sampling import SamplingParams
from outrider.tokenizer import Detokeniser
from outrider.types import EMPTY, DoubleArray, FloatArray, Proposal

PROMPT = "Water boils at"
LENGTH = 4
"""Tokens of the continuation."""

TOP_K = 20
BATCH = 32

End = tuple[int, int | None]
"""How far a text followed the continuation, and the token with which it left it (None: it never did)."""


@dataclass(frozen=True, slots=True)
class DrawsSetting:
    """What one test runs: an acceptance rule, and one of DRAFTERS."""

    rule: str
    drafter: str


@dataclass(frozen=True, slots=True)
class DrawsCell:
    """The verdict on one setting.

    drafted, accepted  tokens sent to verification, and those of them in the texts.
    fault              why this shows nothing ("": it does).
    """

    setting: DrawsSetting
    fit: Fit | None
    drafted: int
    accepted: int
    fault: str = ""

    @property
    def holds(self) -> bool:
        """Whether ends were counted, drafts among them, and no bias is seen."""
        return self.fit is not None and self.fit.holds and not self.fault

    @property
    def evidence(self) -> str:
        """The verdict in words."""
        return self.fault or (self.fit.in_words if self.fit else "")


def factors(*, own_draft: bool = False) -> dict[str, list[str]]:
    """The values of each field of a setting; own_draft: whether the pair has one."""
    return {
        "rule": [name for name in verify.available() if name != "greedy"],
        "drafter": [name for name in DRAFTERS if name != OWN or own_draft],
    }


class Draws:
    """The target's law at one prompt, and counts of what the engine draws there.

    llm   the target.
    seed  of all draws.
    """

    def __init__(self, llm: LLM, seed: int) -> None:
        self._llm = llm
        self.vocabulary = llm.model.vocabulary_size
        self.own_draft = llm.own_draft
        self._seed = seed
        self._prompt = llm.encode(PROMPT)
        self._params = SamplingParams(temperature=1.0, top_k=TOP_K, max_tokens=2 * LENGTH, ignore_eos=True)
        self.path: tuple[int, ...] = ()
        self.law: dict[End, float] = {}
        self.laws: list[DoubleArray] = []
        reach = 1.0
        for depth in range(LENGTH):
            logits = next_logits(llm.model, [*self._prompt, *self.path])
            p = reference.law(logits, self._params, self._prompt, self.path)
            token = int(p.argmax())
            self.law |= {(depth, int(other)): reach * p[other] for other in p.nonzero()[0] if other != token}
            reach *= p[token]
            self.path += (token,)
            self.laws.append(p)
        self.law[LENGTH, None] = reach

    def check(self, setting: DrawsSetting, *, draws: int, level: float, fault: Fault | None = None) -> DrawsCell:
        """Count the ends of so many texts, with a planted fault, if given, and test them."""
        params = replace(self._params, seed=spread(self._seed, setting), acceptance=setting.rule)  # type: ignore[arg-type]
        requests = [Request(self._prompt, params, choice) for choice in range(draws)]
        parts = Parts(self._llm.model, DRAFTERS[setting.drafter](self))
        rig = Rig(
            fault(parts) if fault else parts,
            blocks=BATCH * KVCache.blocks_for(len(self._prompt) + 2 * LENGTH),
            make_detokeniser=lambda: Detokeniser(self._llm.tokenizer),
            max_batch=BATCH,
        )

        def watch(emitted: Emitted) -> None:
            if self.end(emitted.request.output) is not None:
                rig.engine.cancel(emitted.request)  # what comes after is not looked at

        try:
            rig.run(requests, watch)
        except Exception as error:
            return DrawsCell(setting, None, 0, 0, f"{type(error).__name__}: {error}")
        ends = Counter(end for request in requests if (end := self.end(request.output)) is not None)
        drafted, accepted = (
            sum(getattr(request.stats, name) for request in requests) for name in ("drafted", "accepted")
        )
        return DrawsCell(setting, fit(ends, self.law, level), drafted, accepted, "" if accepted else UNDRAFTED)

    def end(self, output: Sequence[int]) -> End | None:
        """How a text ends; None: it follows the continuation still."""
        for depth, (token, expected) in enumerate(zip(output, self.path, strict=False)):
            if token != expected:
                return depth, token
        return (LENGTH, None) if len(output) >= LENGTH else None


def next_logits(model: CausalLM, tokens: Sequence[int]) -> FloatArray:
    """Logits after tokens, from one pass over all of them; float32, [vocabulary]."""
    cache = KVCache(model.kv_shape, KVCache.blocks_for(len(tokens)))
    rows = cache.reserve([_Whole(tokens)], [EMPTY])
    logits: FloatArray = model.forward(rows, cache).logits[0].copy()
    return logits


@dataclass(frozen=True, slots=True)
class _Whole:
    """A text that is computed in one pass."""

    tokens: Sequence[int]
    sequence: KVSequence = field(default_factory=KVSequence)
    wanted: bool = True


def _along(draws: Draws) -> Drafter:
    """The continuation itself, as a tree."""

    def draft(request: DraftRequest) -> Proposal:
        return Proposal.chain(draws.path[len(request.tokens) - request.prompt_length :], "along")

    return as_tree(FunctionDrafter("along", draft), draws.vocabulary)


def _beside(draws: Draws) -> Drafter:
    """A chain drawn from laws that say the continuation half of the time, and else any token that can come there."""
    laws: list[DoubleArray] = []
    for token, p in zip(draws.path, draws.laws, strict=True):
        q = np.where(p > 0, 0.5 / np.count_nonzero(p), 0.0)
        q[token] += 0.5
        laws.append(q)
    kept = [(q.nonzero()[0], q[q > 0].cumsum()) for q in laws]

    def draft(request: DraftRequest) -> Proposal:
        depth = len(request.tokens) - request.prompt_length
        tokens = []
        for ahead, (ids, sums) in enumerate(kept[depth : depth + request.most]):
            uniform = request.noise.ahead(ahead).uniform(Purpose.DRAFT)
            tokens.append(int(ids[sums.searchsorted(uniform * sums[-1], side="right")]))
        return Proposal.chain(tokens, "beside", q=laws[depth : depth + len(tokens)])

    return FunctionDrafter("beside", draft, draws=True)


def _own(draws: Draws) -> Drafter:
    """The pair's own draft model or head, which draws by its own law."""
    assert draws.own_draft is not None
    return draws.own_draft


DRAFTERS: Mapping[str, Callable[[Draws], Drafter]] = {"one-hot tree": _along, "drawn": _beside, OWN: _own}
"""Kinds of drafters: two made of what is known of the target, and that of the pair, if it has one."""
