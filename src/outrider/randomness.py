"""Random numbers as a pure function of what they are for: no stream, no state, nothing that a batch could shift.

A `Noise` says where in which text a draw happens; its methods hash that, with a purpose, into uniform or exponential
numbers (the finaliser of SplitMix64, Steele et al. 2014, used as a counter-based generator).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from outrider.kernels import _sampling
from outrider.types import DoubleArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB

BLOCK = 32
"""Ids whose noise hangs together in `Noise.exponentials`."""

_Ids = npt.NDArray[np.int32] | npt.NDArray[np.int64]


class Purpose(IntEnum):
    """What a number is drawn for; two purposes never share a number."""

    ACCEPT = 0  # rejection: whether a drafted token is accepted
    RESIDUAL = 1  # rejection: the token after the accepted path
    TARGET = 2  # coupled: the target's own draw, which a coupled drafter imitates
    DRAFT = 3  # a drafter's draw under rejection
    UNDRAFTED = 4  # rejection: a token of which nothing was drafted


@dataclass(slots=True)  # made in each step, see `outrider.types`
class Noise:
    """The random numbers of one output position of one text.

    seed       of the request; any integer of 64 bits, signed or not.
    choice     index of the text among the texts of the request.
    position   index of the output token that is drawn (0: the first after the prompt).
    committed  output tokens committed when the step began. Rejection looks at later draws before it settles earlier
               ones, so its numbers are keyed by it too: a draw that was looked at must not serve again.
    """

    seed: int
    choice: int = 0
    position: int = 0
    committed: int = 0

    def ahead(self, tokens: int) -> Noise:
        """The noise `tokens` output positions later in the same step."""
        return type(self)(self.seed, self.choice, self.position + tokens, self.committed) if tokens else self

    def uniform(self, purpose: Purpose, sibling: int = 0) -> float:
        """A number in the open interval (0, 1), keyed by every field, the purpose and the sibling."""
        return ((self._state(purpose, sibling, self.committed) >> 12) + 0.5) * 2.0**-52

    def keys(self, purpose: Purpose) -> tuple[int, int]:
        """What `exponentials` and its twin in native/sampling.cpp derive the numbers of blocks and of ids from."""
        committed = 0 if purpose == Purpose.TARGET else self.committed
        return self._state(purpose, 1, committed), self._state(purpose, 0, committed)

    def exponentials(self, purpose: Purpose, ids: _Ids) -> DoubleArray:
        """Independent Exp(1) noise per token id; float64, [len(ids)].

        argmin(exponentials / p) is a draw from p, and -log(exponentials) is standard Gumbel noise.

        Keyed by every field, the purpose and the id, but for the target's own draws not by `committed`: these are the
        same in whichever step. The number of an id does not depend on what other ids are asked for. The 32 ids of a
        block get theirs in two parts: the least of 32 such numbers is Exp(1) / 32 and any of them alike, and what
        another one exceeds it by is Exp(1) again. So one hash per block tells whether any of its ids can win.
        """
        of_blocks, of_ids = self.keys(purpose)
        blocks = _hash(of_blocks, ids // BLOCK)
        first = -np.log(_open_interval(blocks)) / BLOCK
        excess = -np.log(_open_interval(_hash(of_ids, ids)))
        excess[blocks % np.uint64(BLOCK) == (ids % BLOCK).astype(np.uint64)] = 0.0
        numbers: DoubleArray = first + excess
        return numbers

    def _state(self, purpose: Purpose, sibling: int, committed: int) -> int:
        return _sampling.key(self.seed & _MASK, self.choice, self.position, purpose, sibling, committed)


def _hash(key: int, numbers: _Ids) -> npt.NDArray[np.uint64]:
    """64 bits per number."""
    state = numbers.astype(np.uint64)
    state *= np.uint64(_GOLDEN)
    state += np.uint64(key)
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    return state ^ (state >> np.uint64(31))


def _open_interval(bits: npt.NDArray[np.uint64]) -> DoubleArray:
    """From the upper 52 of 64 bits, and a half, a number in (0, 1); with 53 bits the largest would round to 1."""
    numbers: DoubleArray = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return numbers
