"""The table of followers: what the target mostly says after each of its n-grams, counted over its own answers.

A trigram model in the manner of Jelinek and Mercer (1980), of distributions instead of tokens: each time an n-gram came
up, the target said how probable every follower was, so few occurrences tell much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.distill.batches import answered
from outrider.distill.features import Features
from outrider.types import IntArray
from outrider.weights.followers import BITS, ORDERS, Table

CANDIDATES = 8
"""Of each position, how many of the target's most probable tokens count."""
GREEDY = 0.5
"""How much of a position's vote goes to its most probable token, as in the loss of a head."""
DOUBT = {1: 0.0, 2: 2.0, 3: 1.0}
"""How many occurrences the shorter n-gram's opinion is worth."""
OCCURRED = {1: 1, 2: 2, 3: 2}
"""How often an n-gram must have come up."""
LEAST = 0.03
"""The chance that a follower must have."""

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Counts:
    """Of all n-grams of one length: keys, ascending, and of each pair (index of the key, token) its chance.

    pairs    index << BITS | token, ascending.
    """

    keys: Keys
    occurred: npt.NDArray[np.int64]
    pairs: Keys
    chances: npt.NDArray[np.float64]


def table(features: Features, numbers: Sequence[int]) -> Table:
    """The table of these dialogues."""
    keys, tokens, votes = _positions(features, numbers)
    counts: _Counts | None = None
    parts = {}
    for order in sorted(ORDERS):
        counts = _count(keys & ((1 << BITS * order) - 1), tokens, votes, order, counts)
        parts[order] = _followers(counts, order)
    return Table({order: parts[order] for order in ORDERS})


def _positions(
    features: Features, numbers: Sequence[int]
) -> tuple[Keys, npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Of each answered position: its last tokens as a key [n], its candidates [n, k], and what each is worth [n, k]."""
    keys, tokens, votes = [], [], []
    longest = max(ORDERS)
    for number in numbers:
        dialogue = features.dialogues[number]
        text = np.concatenate((np.zeros(longest - 1, np.int64), np.array(dialogue.tokens, np.int64)))
        places = answered(dialogue) + longest - 1
        keys.append(sum((text[places - back] << BITS * back for back in range(longest)), np.int64(0)))
        _, candidates, logs = features.of(number)
        worth = (1 - GREEDY) * np.exp(logs[:, :CANDIDATES].astype(np.float32))
        worth[:, 0] += GREEDY
        tokens.append(candidates[:, :CANDIDATES].astype(np.int64))
        votes.append(worth)
    return np.concatenate(keys), np.concatenate(tokens), np.concatenate(votes)


def _count(
    keys: Keys, tokens: npt.NDArray[np.int64], votes: npt.NDArray[np.float32], order: int, shorter: _Counts | None
) -> _Counts:
    known, places, occurred = np.unique(keys, return_inverse=True, return_counts=True)
    pairs, inverse = np.unique((places[:, None] << BITS | tokens).reshape(-1), return_inverse=True)
    sums = np.bincount(inverse, votes.reshape(-1))
    at = pairs >> BITS
    doubt = DOUBT[order]
    if shorter is not None:
        there = np.searchsorted(shorter.keys, known & ((1 << BITS * (order - 1)) - 1))
        wanted = there[at] << BITS | pairs & ((1 << BITS) - 1)
        sums += doubt * shorter.chances[np.searchsorted(shorter.pairs, wanted)]
    return _Counts(known, occurred, pairs, sums / (occurred[at] + doubt))


def _followers(counts: _Counts, order: int) -> tuple[Keys, IntArray, npt.NDArray[np.uint8]]:
    """The n-grams that came up often enough, their likeliest followers, and their chances in 256ths; 0 pads."""
    at, tokens = counts.pairs >> BITS, counts.pairs & ((1 << BITS) - 1)
    kept = (counts.chances >= LEAST) & (counts.occurred[at] >= OCCURRED[order])
    at, tokens, chances = at[kept], tokens[kept], counts.chances[kept]
    ranked = np.lexsort((tokens, -chances, at))
    at, tokens, chances = at[ranked], tokens[ranked], chances[ranked]
    rows, first, row = np.unique(at, return_index=True, return_inverse=True)
    rank = np.arange(len(at)) - first[row]
    few = rank < ORDERS[order]
    followers = np.zeros((len(rows), ORDERS[order]), np.int32)
    scaled = np.zeros(followers.shape, np.uint8)
    followers[row[few], rank[few]] = tokens[few]
    scaled[row[few], rank[few]] = np.clip(np.rint(chances[few] * 256), 1, 255)
    return counts.keys[rows], followers, scaled
