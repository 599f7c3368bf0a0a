"""Drafts from repetition: what followed the end of this text where it, or its last tokens, stood before?

The idea is SuffixDecoding's (Oliaro et al. 2024, arXiv 2411.04975): all earlier occurrences of the longest suffix vote
for the next token, and the votes say how far to trust it. Here the occurrences are found as in LZ77 compressors, along
hash chains, in constant time per token; the proposal is a chain where they agree, and a small tree where they do not.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outrider.drafters.base import Drafter, DraftRequest, RequestView
from outrider.types import EMPTY, ROOT, Proposal

ORDERS = (4, 2, 1)
"""Lengths of the n-grams by which occurrences are found, longest first."""

OCCURRENCES = 16
"""How many of the latest occurrences vote."""

LONGEST = 16
"""How far back an occurrence is compared with the end of the text."""

GENERATION = 2**15
"""Tokens of past outputs in each of the two generations that are kept."""

_SEPARATOR = -1  # between past outputs; as no token, it is never drafted and ends every match

Occurrence = tuple[Sequence[int], int, int]
"""A text, the position in it after an occurrence, and how many tokens match before that."""


class SuffixIndex:
    """Where the n-grams of a growing sequence occurred.

        after extend([5, 6, 7, 5, 6]):  matches([5, 6]) == [([5, 6, 7, 5, 6], 2, 2)]

    Constant time per token, and about 0.2 kB: one dictionary entry per different n-gram, and the chain of its earlier
    occurrences as one 32-bit number per token.
    """

    __slots__ = ("_chains", "_recent", "_tokens", "length")

    def __init__(self) -> None:
        self.length = 0
        self._tokens: Sequence[int] = ()
        self._recent = 0
        # An n-gram is one integer, 32 bits per token, each plus 2 so that none is 0.
        self._chains: tuple[tuple[int, int, dict[int, int], array[int]], ...] = tuple(
            (n, (1 << 32 * n) - 1, {}, array("i")) for n in ORDERS
        )

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in what `tokens`, the whole sequence so far, has beyond what is known; it is kept by reference."""
        recent, whole = self._recent, self._chains[0][1]
        for position in range(self.length, len(tokens)):
            recent = (recent << 32 | tokens[position] + 2) & whole
            for _, mask, latest, earlier in self._chains:
                key = recent & mask
                earlier.append(latest.get(key, -1))
                latest[key] = position
        self._recent, self.length, self._tokens = recent, len(tokens), tokens

    def matches(self, suffix: Sequence[int]) -> list[Occurrence]:
        """The latest occurrences of the longest n-gram at the end of `suffix` that a token followed before."""
        tokens, found = self._tokens, []
        for n, _, latest, earlier in self._chains:
            if n > len(suffix):
                continue
            key = 0
            for token in suffix[-n:]:
                key = key << 32 | token + 2
            position = latest.get(key, -1)
            for _ in range(OCCURRENCES):
                if position < 0:
                    break
                if position + 1 < self.length:
                    found.append((tokens, position + 1, _common(tokens, position + 1, suffix, n)))
                position = earlier[position]
            if found:
                break
        return found


class PastOutputs:
    """Outputs of requests that are over, the latest ones: two generations, of which the older is dropped as a whole.

    What comes up again is written again, and so stays.
    """

    def __init__(self, generation: int = GENERATION) -> None:
        self._size = generation
        self._texts: list[list[int]] = [[], []]
        self._indices = [SuffixIndex(), SuffixIndex()]

    def add(self, output: Iterable[int]) -> None:
        """Remember an output, or its beginning if it is longer than a generation."""
        if len(self._texts[0]) >= self._size:
            self._texts = [[], self._texts[0]]
            self._indices = [SuffixIndex(), self._indices[0]]
        text = self._texts[0]
        room = self._size - len(text)
        text += [*output][:room]
        text.append(_SEPARATOR)
        self._indices[0].extend(text)

    def matches(self, suffix: Sequence[int]) -> list[Occurrence]:
        """Occurrences in any of them."""
        found = [match for index in self._indices for match in index.matches(suffix)]
        return [(text, position, length) for text, position, length in found if text[position] != _SEPARATOR]


@dataclass(frozen=True, slots=True)
class _Text:
    """A request and its index."""

    view: RequestView
    index: SuffixIndex


@dataclass(order=True, frozen=True, slots=True)
class _Node:
    """A candidate for the tree; the one with the least `order` comes next."""

    order: tuple[float, int]
    token: int
    parent: int
    estimate: float
    suffix: list[int]
    occurrences: list[Occurrence]


class SuffixDrafter(Drafter):
    """A tree of at most k nodes, most probable first: a chain, where the occurrences agree.

    past  outputs of requests that are over, of whichever caller, to draft from as well, and to add to. None: a
          request's drafts come from its own tokens alone, and nothing of it outlives it.
    """

    name = "suffix"

    def __init__(self, k: int = 8, past: PastOutputs | None = None) -> None:
        self._k = k
        self._past = past
        self._texts: dict[int, _Text] = {}

    def begin(self, request: RequestView) -> None:
        self._texts[request.id] = _Text(request, SuffixIndex())

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._tree(request) for request in requests]

    def end(self, request_id: int) -> None:
        text = self._texts.pop(request_id, None)
        if text is not None and self._past is not None:
            self._past.add(text.view.tokens[text.view.prompt_length :])

    def _tree(self, request: DraftRequest) -> Proposal:
        count = min(self._k, request.most)
        if count <= 0:
            return EMPTY
        index = self._texts[request.id].index
        index.extend(request.tokens)
        candidates: list[_Node] = []
        serial = 0

        def grow(parent: int, gain: float, suffix: list[int], occurrences: list[Occurrence]) -> None:
            """Add the successors of a node that is accepted with probability `gain`."""
            nonlocal serial
            if not occurrences:  # all of them end with the text: start over, as a loop would
                occurrences = index.matches(suffix) + (self._past.matches(suffix) if self._past else [])
            for token, estimate in votes(occurrences):
                follow = [
                    (text, at + 1, n + 1)
                    for text, at, n in occurrences
                    if text[at] == token and at + 1 < len(text) and text[at + 1] != _SEPARATOR
                ]
                node = _Node((-gain * estimate, serial), token, parent, estimate, [*suffix, token], follow)
                heapq.heappush(candidates, node)
                serial += 1

        nodes: list[_Node] = []
        grow(ROOT, 1.0, list(request.tokens[-LONGEST:]), [])
        while candidates and len(nodes) < count:
            node = heapq.heappop(candidates)
            nodes.append(node)
            if len(nodes) < count:
                grow(len(nodes) - 1, -node.order[0], node.suffix, node.occurrences)
        if not nodes:
            return EMPTY
        return Proposal(
            tokens=tuple(node.token for node in nodes),
            parents=tuple(node.parent for node in nodes),
            drafter=self.name,
            estimates=tuple(node.estimate for node in nodes),
            q=(None,) * len(nodes),
        )


def votes(occurrences: Sequence[Occurrence]) -> list[tuple[int, float]]:
    """The three most likely next tokens, and the probability of each that it is the target's.

    An occurrence votes with 2^(its match - the longest), and silence has 3 / longest^1.5 votes. Both figures are
    fitted to half of 60,719 tokens that the default model wrote in answer to questions of its own at temperature 0.
    In the other half, first choices given 0.16, 0.24, 0.46, 0.64, 0.85, 0.95 came true in 0.12, 0.21, 0.52, 0.71,
    0.86, 0.95 of the cases, and runners-up in some 0.6 of what the votes say.
    """
    if not occurrences:
        return []
    longest = max(length for _, _, length in occurrences)
    weights: dict[int, float] = {}
    for text, position, length in occurrences:
        token = text[position]
        weights[token] = weights.get(token, 0.0) + 2.0 ** (length - longest)
    total = 3 * longest**-1.5 + sum(weights.values())
    best = sorted(weights, key=lambda token: -weights[token])[:3]  # of equals, the later occurrence comes first
    return [(token, weights[token] / total * (1.0 if token == best[0] else 0.6)) for token in best]


def _common(tokens: Sequence[int], end: int, suffix: Sequence[int], known: int) -> int:
    """How many tokens before `end` equal the end of the suffix, `known` or more."""
    most = min(LONGEST, len(suffix), end)
    while known < most and tokens[end - 1 - known] == suffix[-1 - known]:
        known += 1
    return known
