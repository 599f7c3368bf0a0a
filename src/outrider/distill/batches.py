"""Dialogues and their features as tensors: what a student sees in one step of training, and what it should have said.

A chain that starts at index i reads the target's taps up to position i and the tokens up to i + 1, and foretells token
i + 2, then i + 3, ...: what a drafter does after the target has computed position i and chosen token i + 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from torch import Tensor

from outrider.distill.features import Features
from outrider.distill.interview import Dialogue

_WINDOW = 256  # dialogues that are sorted by length together


@dataclass(frozen=True, slots=True)
class Goal:
    """What the target said at some places.

    tokens   int64 [..., candidates], the target's ids of its most probable tokens, likeliest first.
    p        [..., candidates], their probabilities.
    counts   bool [...], whether the place belongs to an answer: only there the others mean something.
    """

    tokens: Tensor
    p: Tensor
    counts: Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Some dialogues, padded behind to the longest.

    tokens   int64 [batch, length + 1].
    taps     bfloat16 [batch, length, taps * hidden].
    starts   int64 [batch, count], where chains start, padded with places that do not count.
    goal     of each position, [batch, length].
    """

    tokens: Tensor
    taps: Tensor
    starts: Tensor
    goal: Goal

    def goals(self, starts: Tensor, step: int) -> Goal:
        """What the target said where the chains [batch, count] come in their `step`."""
        at = starts + 1 + step
        inside = at < self.goal.counts.shape[1]
        at = at.clamp(max=self.goal.counts.shape[1] - 1)
        wide = at[..., None].expand(-1, -1, self.goal.tokens.shape[-1])
        return Goal(
            self.goal.tokens.gather(1, wide), self.goal.p.gather(1, wide), self.goal.counts.gather(1, at) & inside
        )


def make(features: Features, numbers: Sequence[int], device: torch.device) -> Batch:
    """The batch of these dialogues."""
    dialogues = [features.dialogues[number] for number in numbers]
    found = [features.of(number) for number in numbers]
    length = max(len(dialogue.tokens) for dialogue in dialogues) - 1
    places = [answered(dialogue) for dialogue in dialogues]
    starts = [at[at > 0] - 1 for at in places]
    size = len(dialogues)
    candidates = found[0][1].shape[1]
    tokens = np.zeros((size, length + 1), np.int64)
    taps = torch.zeros(size, length, found[0][0].shape[1], dtype=torch.bfloat16)
    likeliest = np.zeros((size, length, candidates), np.int64)
    logs = np.full((size, length, candidates), -np.inf, np.float32)
    counts = np.zeros((size, length), np.bool_)
    # A place that does not count: the last but one, whose token comes last and is foretold by nobody.
    begins = np.full((size, max(map(len, starts))), length - 1, np.int64)
    for row, (dialogue, (taps_of, ids, logs_of)) in enumerate(zip(dialogues, found, strict=True)):
        tokens[row, : len(dialogue.tokens)] = dialogue.tokens
        taps[row, : len(dialogue.tokens) - 1] = torch.from_numpy(np.array(taps_of))
        likeliest[row, places[row]] = ids
        logs[row, places[row]] = logs_of
        counts[row, places[row]] = True
        begins[row, : len(starts[row])] = starts[row]
    goal = Goal(torch.from_numpy(likeliest), torch.from_numpy(logs).exp(), torch.from_numpy(counts))
    goal = Goal(goal.tokens.to(device), goal.p.to(device), goal.counts.to(device))
    return Batch(torch.from_numpy(tokens).to(device), taps.to(device), torch.from_numpy(begins).to(device), goal)


def epoch(features: Features, numbers: Sequence[int], rows: int, rng: Random) -> Iterator[list[int]]:
    """All dialogues once, in batches of dialogues of like length with about so many chains."""
    shuffled = list(numbers)
    rng.shuffle(shuffled)
    for first in range(0, len(shuffled), _WINDOW):
        window = sorted(shuffled[first : first + _WINDOW], key=lambda n: len(features.dialogues[n].tokens))
        groups: list[list[int]] = [[]]
        held = 0
        for number in window:
            if held >= rows:
                groups.append([])
                held = 0
            groups[-1].append(number)
            held += len(answered(features.dialogues[number]))
        rng.shuffle(groups)
        yield from groups


def answered(dialogue: Dialogue) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The positions after which the target spoke: those before each token of its answers."""
    return np.concatenate([np.arange(start - 1, end - 1) for start, end in dialogue.answers])
