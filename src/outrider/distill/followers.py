"""The table of followers: what the target mostly says after each of its n-grams, counted over its own answers.

A trigram model, smoothed by discounts (Chen and Goodman 1999, "An empirical study of smoothing techniques for language
modeling"): what came up once or twice is believed less than it was counted; what that leaves goes to what the shorter
n-gram says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.distill.interview import Dialogue
from outrider.weights.followers import BITS, ORDERS, Part, Table

DISCOUNT = 0.75
"""What is taken off a count where there are too few counts to say."""
OCCURRED = {1: 1, 2: 2, 3: 2}
"""How often an n-gram must have come up. Rarer ones would treble the table, for no more accepted tokens."""
LEAST = 0.03
"""The chance that a follower must have."""

_ENOUGH = 1000  # pairs
_LAST = (1 << BITS) - 1  # the bits of an n-gram's last token

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Counts:
    """Of all n-grams of one length.

    keys      ascending.
    occurred  how often each came up.
    pairs     index of a key << BITS | token that followed it, ascending.
    chances   of each pair.
    """

    keys: Ints
    occurred: Ints
    pairs: Ints
    chances: npt.NDArray[np.float64]


def table(dialogues: Sequence[Dialogue]) -> Table:
    """The table of these dialogues' answers."""
    keys, tokens = _occurrences(dialogues)
    counts = _count(keys & _LAST, tokens, 1, None)
    parts = {1: _followers(counts, 1)}
    for order in (2, 3):
        counts = _count(keys & ((1 << BITS * order) - 1), tokens, order, counts)
        parts[order] = _followers(counts, order)
    return Table({order: parts[order] for order in ORDERS})


def _occurrences(dialogues: Sequence[Dialogue]) -> tuple[Ints, Ints]:
    """Of each token of the answers: the three before it, as a key, and itself."""
    longest = max(ORDERS)
    keys, tokens = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for dialogue in dialogues:
        text = np.array([0] * longest + dialogue.tokens, np.int64)
        places = np.concatenate([np.arange(start, end) for start, end in dialogue.answers]) + longest
        key = np.zeros(len(places), np.int64)
        for back in range(longest, 0, -1):
            key = key << BITS | text[places - back]
        keys.append(key)
        tokens.append(text[places])
    return np.concatenate(keys), np.concatenate(tokens)


def _count(keys: Ints, tokens: Ints, order: int, shorter: _Counts | None) -> _Counts:
    known, places, occurred = np.unique(keys, return_inverse=True, return_counts=True)
    pairs, times = np.unique(places << BITS | tokens, return_counts=True)
    at = pairs >> BITS
    if shorter is None:
        return _Counts(known, occurred, pairs, times / occurred[at])
    discount = discounts(times)[np.minimum(times, 3)]
    left = np.bincount(at, discount, len(known)) / occurred
    there = np.searchsorted(shorter.keys, known & ((1 << BITS * (order - 1)) - 1))
    backed = shorter.chances[np.searchsorted(shorter.pairs, there[at] << BITS | pairs & _LAST)]
    return _Counts(known, occurred, pairs, (times - discount) / occurred[at] + left[at] * backed)


def discounts(times: Ints) -> npt.NDArray[np.float64]:
    """What to take off pairs that came up k = 1, 2, or more times, at these indices: k - (k + 1) y n(k + 1) / n(k) with
    n(k) pairs that came up k times and y = n(1) / (n(1) + 2 n(2)) (modified Kneser-Ney)."""
    n = np.bincount(np.minimum(times, 5), minlength=6).astype(np.float64)
    if len(times) < _ENOUGH or not n[1:5].all():
        return np.full(4, DISCOUNT)
    y = n[1] / (n[1] + 2 * n[2])
    found: npt.NDArray[np.float64] = np.array([0.0, *[k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3)]])
    return found.clip(0, [0, 1, 2, 3])


def _followers(counts: _Counts, order: int) -> Part:
    """The n-grams that came up often enough, their likeliest followers, and their chances in 256ths; 0 pads."""
    at = counts.pairs >> BITS
    kept = (counts.chances >= LEAST) & (counts.occurred[at] >= OCCURRED[order])
    at, tokens, chances = at[kept], counts.pairs[kept] & _LAST, counts.chances[kept]
    ranked = np.lexsort((tokens, -chances, at))
    at, tokens, chances = at[ranked], tokens[ranked], chances[ranked]
    found, first, row = np.unique(at, return_index=True, return_inverse=True)
    rank = np.arange(len(at)) - first[row]
    few = rank < ORDERS[order]
    followers = np.zeros((len(found), ORDERS[order]), np.int32)
    scaled = np.zeros(followers.shape, np.uint8)
    followers[row[few], rank[few]] = tokens[few]
    scaled[row[few], rank[few]] = np.clip(np.rint(chances[few] * 256), 1, 255)
    return counts.keys[found], followers, scaled
