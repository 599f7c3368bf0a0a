"""Prompt lookup (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding): what followed these tokens before?

The longest recent n-gram that occurred earlier in the same request is looked up in an index that grows with the text,
so a proposal takes the same time at any context length.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.drafters.base import Drafter, DraftRequest, RequestView
from outrider.types import EMPTY, Proposal

LONGEST = 6
"""Longest n-gram that is looked up."""

PRIORS = (0.3, 0.45, 0.6, 0.7, 0.75, 0.8)
"""Rough acceptance of a token that follows a match of 1, 2, ... tokens; a policy calibrates it."""


class NgramIndex:
    """Where each n-gram (1 to `longest` tokens) of a growing sequence last occurred, and was followed by a token.

        after extend([5, 6, 7, 5, 6]):  match() == (2, 2), "5 6" was followed by tokens[2]

    Constant time per token; about 0.5 kB per token while all n-grams differ, a fiftieth of a small model's KV cache.
    """

    __slots__ = ("_continuations", "_masks", "_recent", "length")

    def __init__(self, longest: int = LONGEST) -> None:
        self.length = 0
        self._continuations: dict[int, int] = {}
        # An n-gram is one integer, 32 bits per token, each plus 1 so that n-grams of different n are different.
        self._masks = tuple((1 << 32 * n) - 1 for n in range(1, longest + 1))
        self._recent = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in what `tokens`, the whole sequence so far, has beyond what is known."""
        recent, continuations = self._recent, self._continuations
        whole = self._masks[-1]
        for position in range(self.length, len(tokens)):
            for mask in self._masks[:position]:
                continuations[recent & mask] = position
            recent = (recent << 32 | tokens[position] + 1) & whole
        self._recent, self.length = recent, len(tokens)

    def match(self) -> tuple[int, int] | None:
        """Length of the longest suffix that occurred before, and the position after its last such occurrence."""
        found = None
        for n, mask in enumerate(self._masks[: self.length], start=1):
            position = self._continuations.get(self._recent & mask)
            if position is None:  # then nothing longer occurred either
                break
            found = n, position
        return found


class NgramDrafter(Drafter):
    """A chain of at most k tokens, or the length that is asked for, which continues the last occurrence of the longest
    matching n-gram.

    Where the continuation reaches the end of the text it starts over, as a loop would.
    """

    name = "ngram"

    def __init__(self, k: int = 5) -> None:
        self._k = k
        self._indices: dict[int, NgramIndex] = {}

    def begin(self, request: RequestView) -> None:
        self._indices[request.id] = NgramIndex()

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._chain(request) for request in requests]

    def end(self, request_id: int) -> None:
        self._indices.pop(request_id, None)

    def _chain(self, request: DraftRequest) -> Proposal:
        count = request.limit(self._k)
        if count <= 0:
            return EMPTY
        index = self._indices[request.id]
        index.extend(request.tokens)
        match = index.match()
        if match is None:
            return EMPTY
        length, position = match
        tokens = request.tokens
        period = len(tokens) - position
        drafted = [tokens[position + i % period] for i in range(count)]
        # Once a drafted token is accepted, the match is longer by one.
        estimates = [PRIORS[min(length + i, LONGEST) - 1] for i in range(count)]
        return Proposal.chain(drafted, self.name, estimates)
