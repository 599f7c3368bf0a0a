"""Drafts from repetition: what followed the end of this text where it, or its last tokens, stood before?

The idea is SuffixDecoding's (Oliaro et al. 2024, arXiv 2411.04975): all earlier occurrences of the longest suffix vote
for the next token, and the votes say how far to trust it. Here the occurrences are found as in LZ77 compressors, along
hash chains, in constant time per token. Where they are silent, a table of what the model mostly says after such words
speaks (`Followers`). The proposal is a chain where all agree, and a small tree where they do not.

Index, votes and tree are native (`native/drafting.cpp`): a proposal takes a few microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import exp

from outrider.drafters.base import Drafter, DraftRequest, RequestView
from outrider.kernels._drafting import Followers, Index, grow
from outrider.types import EMPTY, Proposal

GENERATION = 2**15
"""Tokens of past outputs in each of the two generations that are kept."""

_HOT = 1.5  # the highest temperature about which anything is guessed
_SEPARATOR = -1  # between past outputs; as no token, it is never drafted and ends every match


class PastOutputs:
    """Outputs of requests that are over, the latest ones: two generations, of which the older is dropped as a whole.

    What comes up again is written again, and so stays.

    indices  of the two generations, the younger first.
    """

    def __init__(self, generation: int = GENERATION) -> None:
        self._size = generation
        self.indices = [Index(), Index()]

    def add(self, output: Iterable[int]) -> None:
        """Remember an output, or its beginning if it is longer than a generation."""
        if len(self.indices[0]) >= self._size:
            self.indices = [Index(), self.indices[0]]
        room = self._size - len(self.indices[0])
        self.indices[0].append([*[*output][:room], _SEPARATOR])


@lru_cache(maxsize=64)
def _odds(temperature: float) -> float:
    """A factor: what is likeliest is drawn less often the higher the temperature. In the default model's answers it was
    0.87, 0.77, 0.62, 0.37 at 0.4, 0.6, 0.8, 1; this is 0.94, 0.81, 0.60, 0.37."""
    return exp(-(min(temperature, _HOT) ** 3))


class SuffixDrafter(Drafter):
    """A tree of at most k nodes, or as many as are asked for, most probable first: a chain, where all agree.

    followers  what the target mostly says, whatever the text; None: nothing is known.
    past       outputs of requests that are over, of whichever caller, to draft from as well, and to add to. None, or
               a request that opts out of reuse: its drafts come from its own tokens and the table alone, and nothing
               of it outlives it.
    """

    name = "suffix"

    def __init__(self, k: int = 8, followers: Followers | None = None, past: PastOutputs | None = None) -> None:
        self._k = k
        self._followers = followers
        self._past = past
        self._texts: dict[int, tuple[RequestView, Index]] = {}

    def begin(self, request: RequestView) -> None:
        self._texts[request.id] = request, Index()

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        proposals = []
        for request in requests:
            count = request.limit(self._k)
            if count <= 0:
                proposals.append(EMPTY)
                continue
            _, index = self._texts[request.id]
            index.extend(request.tokens)
            past = self._past.indices if self._past is not None and request.reuse else ()
            odds = _odds(request.params.temperature)
            tokens, parents, estimates = grow(index, past, self._followers, count, odds)
            proposal = Proposal(tokens, parents, self.name, estimates, (None,) * len(tokens)) if tokens else EMPTY
            proposals.append(proposal)
        return proposals

    def end(self, request_id: int) -> None:
        view, _ = self._texts.pop(request_id, (None, None))
        if view is not None and view.reuse and self._past is not None:
            self._past.add(view.tokens[view.prompt_length :])
