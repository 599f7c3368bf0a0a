"""Drafters for comparing texts: those that users have, and others that know the plain text and use it well or badly."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from outrider import drafters
from outrider.certify.rig import Altered, FunctionDrafter
from outrider.drafters.base import Drafter, DraftRequest
from outrider.llm import LLM
from outrider.policy.controller import Controller
from outrider.policy.costs import Costs
from outrider.types import ROOT, Proposal

Tokens = tuple[int, ...]
Guess = Callable[["Knowledge", DraftRequest, random.Random], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What the drafters know.

    texts  the plain output of each request, by id.
    llm    the user's pair.
    """

    texts: Mapping[int, Tokens]
    llm: LLM

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.llm.model.vocabulary_size

    @property
    def end_of_text(self) -> int:
        """A token that ends a text."""
        return next(iter(self.llm.tokenizer.eos_ids), 0)

    def coming(self, request: DraftRequest) -> Tokens:
        """The plain text from where the request has got to."""
        return self.texts[request.id][len(request.tokens) - request.prompt_length :]


def _perfect(knowledge: Knowledge, request: DraftRequest, chance: random.Random) -> Sequence[int]:
    return knowledge.coming(request)


def _half_right(knowledge: Knowledge, request: DraftRequest, chance: random.Random) -> Sequence[int]:
    tokens = knowledge.coming(request)[: chance.randint(1, request.most)]
    return [token if chance.random() < 0.7 else chance.randrange(knowledge.vocabulary) for token in tokens]


def _random(knowledge: Knowledge, request: DraftRequest, chance: random.Random) -> Sequence[int]:
    return [chance.randrange(knowledge.vocabulary) for _ in range(chance.randint(1, request.most))]


def _one_late(knowledge: Knowledge, request: DraftRequest, chance: random.Random) -> Sequence[int]:
    return [request.tokens[-1], *knowledge.coming(request)]


def _end_of_text(knowledge: Knowledge, request: DraftRequest, chance: random.Random) -> Sequence[int]:
    return [knowledge.end_of_text] * request.most


def _knowing(name: str, guess: Guess) -> Callable[[Knowledge], Drafter]:
    """Chains of what `guess` says; chance depends on how far the text is, so that each run takes the same steps."""

    def make(knowledge: Knowledge) -> Drafter:
        def draft(request: DraftRequest) -> Proposal:
            tokens = guess(knowledge, request, random.Random(len(request.tokens)))
            return Proposal.chain(tokens[: request.most], name)

        return FunctionDrafter(name, draft)

    return make


def _existing(name: str) -> Callable[[Knowledge], Drafter]:
    return lambda knowledge: knowledge.llm.fresh_drafter(name)


def _own(knowledge: Knowledge) -> Drafter:
    assert knowledge.llm.own_draft is not None
    return knowledge.llm.own_draft


def _policy(knowledge: Knowledge) -> Drafter:
    """What drafts for the user by default, with rows that cost so much that the policy cuts and chooses."""
    own = knowledge.llm.own_draft
    free = [_EXISTING[name](knowledge) for name in ("prediction", "suffix")]
    return Controller([*free, own] if own else free, Costs((1, 2, 5), (0,), ((1.0, 1.01, 1.5),)))


OWN = "own draft"
"""The drafter that only some pairs have."""

_EXISTING = {name: _existing(name) for name in drafters.available() if name != "grammar"}  # no text here has one
_KNOWING = {
    name: _knowing(name, guess)
    for name, guess in {
        "perfect": _perfect,
        "half right": _half_right,
        "random": _random,
        "one late": _one_late,
        "end of text": _end_of_text,
    }.items()
}

DRAFTERS: Mapping[str, Callable[[Knowledge], Drafter]] = {
    **_EXISTING,
    "auto": _policy,
    **_KNOWING,
    OWN: _own,
}
"""All drafters of the package alone, "suffix" with the model's table; those that a user has by default, together, under
the policy; then: the plain text itself; with every third token wrong, and of random length; random tokens; the plain
text one token too late; nothing but the token that ends texts. And, if the pair that is certified has one, its own
draft model or head.
"""


TALKATIVE = frozenset({*_KNOWING, OWN})
"""Those that have something to say in every step: where they hardly do, nothing is shown."""


def as_tree(drafter: Drafter, vocabulary: int) -> Drafter:
    """The drafter, with a wrong sibling before each of its tokens and, after it, a child of the wrong one.

    An accepted path is thus never where it belongs, and has to be moved.
    """

    def alter(proposal: Proposal, request: DraftRequest) -> Proposal:
        if request.most == 1:
            return proposal
        tokens: list[int] = []
        parents: list[int] = []
        here = ROOT
        for token in proposal.tokens:
            wrong = len(tokens)
            tokens += [(token + 1) % vocabulary, token, token]
            parents += [here, here, wrong]
            here = wrong + 1
        n = len(tokens)
        return Proposal(tuple(tokens), tuple(parents), proposal.drafter, (1.0,) * n, (None,) * n).cut(request.most)

    return Altered(drafter, alter)


SHAPES: Mapping[str, Callable[[Drafter, int], Drafter]] = {
    "chain": lambda drafter, vocabulary: drafter,
    "tree": as_tree,
}
"""What is made of a drafter of chains, and the size of the vocabulary."""
