"""The caller's own expectation of the output (OpenAI's `prediction` field), followed for as long as it holds.

Where the output departs from it, its last tokens are looked for in the prediction and the chain goes on from there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.drafters.base import Drafter, DraftRequest, RequestView
from outrider.types import EMPTY, Proposal

ESTIMATE = 0.8
"""Rough acceptance of a predicted token; a policy calibrates it."""

_CANDIDATES = 8  # places on either side of the pointer that are compared, so that a proposal takes bounded time
_LONGEST = 8  # tokens compared backwards at each of them


class PredictionDrafter(Drafter):
    """A chain of at most k tokens of the prediction, or the length that is asked for, from where the output is."""

    name = "prediction"

    def __init__(self, k: int = 8) -> None:
        self._k = k
        self._places: dict[int, _Place] = {}

    def serves(self, request: RequestView) -> bool:
        return bool(request.prediction)

    def begin(self, request: RequestView) -> None:
        self._places[request.id] = _Place(request.prediction)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._chain(request) for request in requests]

    def end(self, request_id: int) -> None:
        self._places.pop(request_id, None)

    def _chain(self, request: DraftRequest) -> Proposal:
        if not request.prediction or request.most <= 0:
            return EMPTY
        place = self._places[request.id]
        place.advance(request.tokens, request.prompt_length)
        count = request.limit(self._k)
        drafted = place.prediction[place.pointer : place.pointer + count] if place.aligned else ()
        return Proposal.chain(drafted, self.name, (ESTIMATE,) * len(drafted)) if drafted else EMPTY


class Uptake:
    """Counts the tokens of a prediction that an output took up, as the drafter follows it: token by token, and after a
    departure from the next place on that agrees with two tokens. It does not depend on what was drafted.
    """

    def __init__(self, prediction: Sequence[int]) -> None:
        self._place = _Place(tuple(prediction))
        self._output: list[int] = []
        self._taken = bytearray(len(prediction))

    @property
    def accepted(self) -> int:
        """How many tokens of the prediction are in the output so far."""
        return sum(self._taken)

    @property
    def rejected(self) -> int:
        """How many are not."""
        return len(self._taken) - self.accepted

    def add(self, tokens: Sequence[int]) -> None:
        """Take in the next tokens of the output."""
        place, output = self._place, self._output
        for token in tokens:
            output.append(token)
            expected = place.pointer + 1 if place.aligned else None
            place.advance(output, 0)
            if place.aligned:
                count = 1 if place.pointer == expected else place.matching(place.pointer, output[-_LONGEST:])
                self._taken[place.pointer - count : place.pointer] = b"\1" * count


@dataclass(slots=True)
class _Place:
    """Where in the prediction the output is: before `pointer` if aligned, else somewhere unknown, last seen there."""

    prediction: tuple[int, ...]
    pointer: int = 0
    aligned: bool = True
    known: int = 0  # output tokens taken in
    pairs: dict[tuple[int, int], list[int]] = field(init=False)  # two tokens -> places after them, ascending

    def __post_init__(self) -> None:
        self.pairs = {}
        for place, pair in enumerate(zip(self.prediction, self.prediction[1:], strict=False), start=2):
            self.pairs.setdefault(pair, []).append(place)

    def advance(self, tokens: Sequence[int], prompt_length: int) -> None:
        """Take in the output tokens since the last time."""
        for position in range(prompt_length + self.known, len(tokens)):
            token = tokens[position]
            if self.aligned and self.pointer < len(self.prediction) and self.prediction[self.pointer] == token:
                self.pointer += 1
            else:
                self.aligned = False
        self.known = len(tokens) - prompt_length
        if not self.aligned and self.known >= 2:
            self._align(tokens[-min(self.known, _LONGEST) :])

    def _align(self, suffix: Sequence[int]) -> None:
        """Go to the place with the longest match, of two tokens or more: the first from the pointer on, or before it.

        A NgramIndex knows one place per n-gram; here all of them matter, since texts to be edited repeat themselves.
        """
        places = self.pairs.get((suffix[-2], suffix[-1]), [])
        ahead = bisect_left(places, self.pointer)
        candidates = places[ahead : ahead + _CANDIDATES] + places[max(0, ahead - _CANDIDATES) : ahead][::-1]
        if candidates:
            self.pointer = max(candidates, key=lambda place: self.matching(place, suffix))  # the first of the best
            self.aligned = True

    def matching(self, place: int, suffix: Sequence[int]) -> int:
        """How many tokens before `place` equal the end of the output."""
        length = 0
        before = self.prediction[max(0, place - len(suffix)) : place]
        for mine, theirs in zip(reversed(before), reversed(suffix), strict=False):
            if mine != theirs:
                break
            length += 1
        return length
