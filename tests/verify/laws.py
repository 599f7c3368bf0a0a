"""Oracles for losslessness: whole texts decoded with an acceptance rule, counted, against their exact law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from hypothesis import strategies as st

from outrider.certify.statistics import fit
from outrider.randomness import Noise
from outrider.sampling import History, SamplingParams
from outrider.types import ROOT, DoubleArray, FloatArray, Proposal
from outrider.verify.base import Verify

Text = tuple[int, ...]
Target = Callable[[Text], Sequence[float]]
Draft = Callable[[Text, np.random.Generator], Proposal]

WARM = SamplingParams(temperature=1.0)
NEW = History()
"""What comes before the first token of a text without a prompt."""
RUNS = 20_000
FAULTY_RUNS = 5_000  # a quarter of the evidence must be enough to convict a fault


def fits(counts: Sequence[int], p: Sequence[float]) -> bool:
    """Whether counts have a law, which need not be of sum 1; an honest count fails once in 30,000 times."""
    total = sum(p)
    law = {place: float(each / total) for place, each in enumerate(p)}
    return fit(dict(enumerate(counts)), law, level=3e-5).holds


def rows(target: Target, text: Text, proposal: Proposal) -> FloatArray:
    """The logits that a target gives for the last token of `text` and for each node."""
    texts: list[Text] = []
    for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
        texts.append((text if parent == ROOT else texts[parent]) + (token,))
    with np.errstate(divide="ignore"):
        logits: FloatArray = np.log([target(each) for each in (text, *texts)]).astype(np.float32)
    return logits


def decode(verify: Verify, target: Target, draft: Draft, seed: int, length: int, params: SamplingParams) -> Text:
    """One text of `length` tokens, step by step; the drafter's chance is keyed by seed and text."""
    text: Text = ()
    while len(text) < length:
        proposal = draft(text, np.random.default_rng([seed, *text]) if draft is not nothing else _NO_CHANCE)
        outcome = verify(
            rows(target, text, proposal), proposal, params, Noise(seed, 0, len(text), len(text)), History(text)
        )
        text = (*text, *(proposal.tokens[node] for node in outcome.path), outcome.token)
    return text[:length]


def lossless(verify: Verify, target: Target, draft: Draft, length: int = 1, runs: int = RUNS) -> bool:
    """Whether the texts decoded with `verify` have the target's law, all of them enumerated."""
    vocabulary = len(target(()))
    counts = Counter(decode(verify, target, draft, seed, length, WARM) for seed in range(runs))
    texts = list(product(range(vocabulary), repeat=length))
    exact = [np.prod([target(text[:i])[text[i]] for i in range(length)]) for text in texts]
    return fits([counts[text] for text in texts], exact)


def nothing(text: Text, chance: np.random.Generator) -> Proposal:
    """Plain decoding."""
    return Proposal()


_NO_CHANCE = np.random.default_rng(0)


def drawn(q: Callable[[Text], DoubleArray], k: int) -> Draft:
    """A chain of k tokens drawn from q(text)."""

    def draft(text: Text, chance: np.random.Generator) -> Proposal:
        tokens: list[int] = []
        laws: list[DoubleArray] = []
        for _ in range(k):
            laws.append(q((*text, *tokens)))
            tokens.append(int(laws[-1].cumsum().searchsorted(chance.random(), side="right")))
        return Proposal.chain(tokens, "drawn", q=laws)

    return draft


@st.composite
def cases(draw: st.DrawFn) -> tuple[FloatArray, Proposal]:
    """Logits with ties, impossible tokens and duplicate siblings, and a tree of drawn and chosen nodes."""
    vocabulary, nodes = draw(st.integers(1, 5)), draw(st.integers(0, 6))
    level = st.sampled_from([-np.inf, -3.0, 0.0, 0.0, 1.5])
    row = st.lists(level, min_size=vocabulary, max_size=vocabulary).filter(lambda values: max(values) > -np.inf)
    logits = np.array(draw(st.lists(row, min_size=nodes + 1, max_size=nodes + 1)), np.float32)
    tokens = draw(st.lists(st.integers(0, vocabulary - 1), min_size=nodes, max_size=nodes))
    weight = st.lists(st.floats(0.1, 1), min_size=vocabulary, max_size=vocabulary)
    q = tuple(
        None if weights is None else np.array(weights) / sum(weights)
        for weights in draw(st.lists(st.none() | weight, min_size=nodes, max_size=nodes))
    )
    parents = tuple(draw(st.integers(ROOT, node - 1)) for node in range(nodes))
    return logits, Proposal(tuple(tokens), parents, "any", (0.5,) * nodes, q)


def is_path(path: tuple[int, ...], proposal: Proposal) -> bool:
    """Whether the nodes lead from a root child down the tree."""
    return all(proposal.parents[node] == before for before, node in zip((ROOT, *path), path, strict=False))
