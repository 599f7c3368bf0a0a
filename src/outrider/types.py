"""The values that pass between the floors of the house: proposals, rows, outputs, outcomes, commits.

Nobody changes any of them. Those that are made in each step are not frozen by code, or tuples, since to freeze one
takes a microsecond or two where a pass has just emptied the caches. A *request* is one text being generated; a *step*
is one forward pass of the target over the rows of all scheduled requests. `docs/architecture.md` draws the whole line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

FinishReason = Literal["stop", "length", "cancelled", "error"]
Source = Literal["plain", "accepted", "recovered", "bonus"]

ROOT = -1
"""The parent of a proposal's first nodes: the last committed token."""


@dataclass(slots=True)
class Proposal:
    """The drafted tokens of one request in one step: a tree in topological order; a chain is the common case.

    tokens     the drafted ids.
    parents    parents[j] < j is the node before node j, or ROOT for the last committed token.
    drafter    name of the drafter that made it.
    estimates  per node, the estimated probability that it is accepted given that its parent was.
    q          per node, the very distribution it was drawn from (float64, [vocabulary]); None where it was not
               drawn but chosen (one-hot).
    declined   it is empty because drafts would not have paid, and not for want of any.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    drafter: str = ""
    estimates: tuple[float, ...] = ()
    q: tuple[DoubleArray | None, ...] = ()
    declined: bool = False

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        drafter: str,
        estimates: Sequence[float] | None = None,
        q: Sequence[DoubleArray | None] | None = None,
    ) -> Proposal:
        """A chain of tokens, each the child of the one before."""
        n = len(tokens)
        return cls(
            tokens=tuple(tokens),
            parents=tuple(range(-1, n - 1)),
            drafter=drafter,
            estimates=tuple(estimates) if estimates is not None else (1.0,) * n,
            q=tuple(q) if q is not None else (None,) * n,
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def children(self, node: int) -> list[int]:
        """The nodes whose parent is `node` (ROOT for the first ones), in the order they are to be tried."""
        return [j for j, parent in enumerate(self.parents) if parent == node]

    def tokens_to(self, node: int) -> list[int]:
        """The tokens on the way to a node, its own last; none for ROOT."""
        tokens = []
        while node != ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def cut(self, nodes: int) -> Proposal:
        """Only the first `nodes` nodes (topological order keeps every ancestor of a kept node)."""
        if nodes >= len(self.tokens):
            return self
        return Proposal(self.tokens[:nodes], self.parents[:nodes], self.drafter, self.estimates[:nodes], self.q[:nodes])

    def keep(self, nodes: Sequence[int]) -> Proposal:
        """Only these nodes, each given with its ancestors; in their own order, whatever the order of `nodes`."""
        kept = sorted(nodes)
        if not kept or kept[-1] == len(kept) - 1:
            return self.cut(len(kept))
        places = {ROOT: ROOT} | {node: place for place, node in enumerate(kept)}
        return Proposal(
            tuple(self.tokens[node] for node in kept),
            tuple(places[self.parents[node]] for node in kept),
            self.drafter,
            tuple(self.estimates[node] for node in kept),
            tuple(self.q[node] for node in kept),
        )


EMPTY = Proposal()
DECLINED = Proposal(declined=True)


@dataclass(slots=True)
class Rows:
    """The token positions of one forward pass, flattened over requests: n rows, m requests, w wanted rows.

    Rows of one request are consecutive and in order: an uncomputed stretch of committed tokens, then the nodes of its
    proposal. A *slot* is a place in the KV cache (block number x block size + offset); a *position* is the index of
    the token in its sequence. The two differ in a tree, where siblings share a position but not a slot.

    A row sees the positions 0..positions[i] of its request. Those below tail_starts[i] are read through the block
    table of the request; the others at the slots tail_slots[tail_offsets[i]:tail_offsets[i + 1]], the row's own
    ancestors in order, ending with the row itself. A row whose path is stored at its positions (every row of a chain)
    has tail_starts[i] = positions[i] + 1 and an empty tail.
    """

    tokens: IntArray  # [n] token ids
    positions: IntArray  # [n] rotary position
    slots: IntArray  # [n] KV slot that the row writes
    requests: IntArray  # [n] index into tables
    tables: IntArray  # [m, blocks] block numbers; entries past a request's last block are 0 and never read
    tail_starts: IntArray  # [n]
    tail_offsets: IntArray  # [n + 1]
    tail_slots: IntArray  # [tail_offsets[n]]
    wanted: IntArray  # [w] rows whose logits are wanted, ascending


@dataclass(frozen=True, slots=True)
class Output:
    """What a forward pass gives back; the arrays are valid until the next pass of the same model."""

    logits: FloatArray  # [w, vocabulary], the wanted rows in order
    taps: dict[int, FloatArray] = field(default_factory=dict)  # layer -> [n, hidden], inputs of that layer
    maxima: FloatArray | None = None  # [w, ceil(vocabulary / 32)], the largest of each 32 logits; NaN if one of them is


class Outcome(NamedTuple):
    """What verification says of one proposal: the accepted nodes, root to leaf, and the token after them."""

    path: tuple[int, ...]
    token: int
