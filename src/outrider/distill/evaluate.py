"""How much of a student's drafts the target would accept: measured on dialogues that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from outrider.distill.acceptance import DRAFTED, Acceptance
from outrider.distill.batches import Goal, make
from outrider.distill.features import Features
from outrider.distill.student import Student

_DIALOGUES = 8  # in a batch


@torch.no_grad()
def evaluate(student: Student, features: Features, numbers: Sequence[int], device: torch.device) -> Acceptance:
    """Greedy chains against what the target said: on answers drawn at temperature 0, if there are any."""
    greedy = [n for n in numbers if not any(features.dialogues[n].temperatures)]
    accepted, reached = np.zeros(DRAFTED), np.zeros(DRAFTED)
    tokens = steps = places = 0
    overlap = 0.0
    numbers = sorted(greedy or numbers, key=lambda n: len(features.dialogues[n].tokens))
    for first in range(0, len(numbers), _DIALOGUES):
        batch = make(features, numbers[first : first + _DIALOGUES], device)
        counts = batch.goals(batch.starts, 0).counts
        alive = counts.clone()
        run = torch.zeros_like(batch.starts)
        with torch.autocast(device.type, torch.bfloat16):
            chains = student.chains(batch)
            for step in range(DRAFTED):
                logits = F.linear(chains.advance(), student.output())
                if step == 0:
                    overlap += float(_overlap(student, logits.float(), batch.goals(batch.starts, 0)))
                inside = batch.goals(batch.starts, step).counts
                said = batch.tokens.gather(1, (batch.starts + 2 + step).clamp(max=batch.tokens.shape[1] - 1))
                reached[step] += int((alive & inside).sum())
                alive = alive & inside & (student.target_ids[logits.argmax(-1)] == said)
                accepted[step] += int(alive.sum())
                run += alive
        places += int(counts.sum())
        for lengths, valid in zip(run.tolist(), counts.sum(1).tolist(), strict=True):
            at = 0
            while at < valid:
                steps += 1
                gained = min(lengths[at] + 1, valid - at)
                tokens, at = tokens + gained, at + gained
    rates = accepted / np.maximum(reached, 1)
    return Acceptance(tuple(rates.tolist()), tokens / max(steps, 1), overlap / max(places, 1), places)


def _overlap(student: Student, logits: Tensor, goal: Goal) -> Tensor:
    """The sum of min(p, q) over the places that count."""
    ids = student.draft_ids[goal.tokens]
    q = logits.softmax(-1).gather(-1, ids.clamp(min=0))
    return torch.minimum(q, goal.p).masked_fill(ids < 0, 0).sum(-1)[goal.counts].sum()
