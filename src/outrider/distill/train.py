"""Training: batches in, a better student out, with a checkpoint that a crash loses at most a minute of.

    training = Training(student, features, seed=0, device=device)
    for step in training.run(share): ...    # share() says how much of the time is over
    training.save(path); training.load(path)

Muon for the matrices (Jordan et al. 2024), Adam for the vocabulary and the norms; the rate falls in a straight line to
zero, and an average of the last weights is what is measured and shipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from outrider.distill import batches
from outrider.distill.batches import Batch
from outrider.distill.features import Features
from outrider.distill.loss import CrossEntropy, aims
from outrider.distill.student import Student

MATRIX_RATE = 8e-3
"""Of Muon, whose updates are scaled to the size of Adam's (Liu et al. 2025, arXiv 2502.16982, equation 4)."""
OTHER_RATE = 1e-3
ROWS = 1800
"""Chains of a step."""

_WARM_UP = 10  # steps
_GOING_ON = 0.7  # most of the chains that go on to the next step, as a share
_AVERAGE = 0.97


@dataclass(frozen=True, slots=True)
class Step:
    """One step of training. loss: per chain; hits: per step of the chains, how many foretold the first candidate."""

    loss: float
    hits: tuple[float, ...]


class Training:
    """A student, its optimisers, and how far they are.

    steps, tokens  how many steps, and chain starts, were trained on.
    """

    def __init__(self, student: Student, features: Features, *, seed: int, device: torch.device) -> None:
        self.student, self.device = student, device
        self.steps = self.tokens = 0
        self._features = features
        self._seed = seed
        vocabulary = student.output()
        matrices = [p for p in student.parameters() if p.ndim == 2 and p is not vocabulary]
        others = [p for p in student.parameters() if p.ndim != 2 or p is vocabulary]
        self._optimisers: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(matrices, MATRIX_RATE, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
        )
        self._rates = (MATRIX_RATE, OTHER_RATE)
        self._average = [p.detach().clone() for p in student.parameters()]

    def run(self, numbers: Sequence[int], share: Callable[[], float]) -> Iterator[Step]:
        """Train on these dialogues until `share` reaches 1; it says how much of the training is over."""
        while True:
            # Seeded by the steps that were made, so that going on from a checkpoint needs no generator's state.
            rng = Random(f"{self._seed}/{self.steps}")
            torch.manual_seed(rng.getrandbits(63))
            for group in batches.epoch(self._features, numbers, ROWS, rng):
                over = share()
                if over >= 1:
                    return
                yield self._step(batches.make(self._features, group, self.device), over)

    def averaged(self) -> _Averaged:
        """with training.averaged(): the student has its averaged weights."""
        return _Averaged(self.student, self._average)

    def _step(self, batch: Batch, over: float) -> Step:
        rate = max(0.02, 1 - over) * min(1.0, (self.steps + 1) / _WARM_UP)
        for optimiser, base in zip(self._optimisers, self._rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = base * rate
        with torch.autocast(self.device.type, torch.bfloat16):
            loss, hits = self._loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 5.0)
        for optimiser in self._optimisers:
            optimiser.step()
            optimiser.zero_grad()
        self.steps += 1
        keep = min(_AVERAGE, self.steps / (self.steps + 10))
        with torch.no_grad():
            for average, p in zip(self._average, self.student.parameters(), strict=True):
                average.lerp_(p, 1 - keep)
        return Step(float(loss.detach()), tuple(hits))

    def _loss(self, batch: Batch) -> tuple[Tensor, list[float]]:
        """Chains go on where drafting would: after a step that foretold what the target says."""
        student = self.student
        chains = student.chains(batch)
        loss = torch.zeros((), device=self.device)
        hits: list[float] = []
        count = 0
        for step in range(student.steps):
            goal = batch.goals(chains.starts, step)
            hidden = chains.advance()
            here = goal.counts
            ids = student.draft_ids[goal.tokens[here]]
            total, hit = CrossEntropy.apply(hidden[here], student.output(), ids, aims(ids, goal.p[here]))  # type: ignore[no-untyped-call]
            count = count or len(ids)
            loss = loss + total / max(count, 1)
            hits.append(float(hit.float().mean()) if len(hit) else 0.0)
            if step + 1 == student.steps:
                break
            foretold = torch.zeros_like(here)
            foretold[here] = hit
            columns = _going_on(foretold, batch.goals(chains.starts, step + 1).counts)
            if columns.shape[1] == 0:
                break
            chains.keep(columns)
        self.tokens += count
        return loss, hits

    def save(self, path: Path) -> None:
        """Write everything that going on needs; what was there is replaced at once, or not at all."""
        state = {
            "student": self.student.state_dict(),
            "target_ids": self.student.target_ids,
            "average": self._average,
            "optimisers": [optimiser.state_dict() for optimiser in self._optimisers],
            "steps": self.steps,
            "tokens": self.tokens,
        }
        new = path.with_suffix(".new")
        torch.save(state, new)
        os.replace(new, path)

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `save` wrote."""
        self.student.load_state_dict(state["student"])
        self._average = [tensor.to(self.device) for tensor in state["average"]]
        for optimiser, saved in zip(self._optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.steps, self.tokens = state["steps"], state["tokens"]


class _Averaged:
    """Exchanges the student's weights for their average, and back."""

    def __init__(self, student: Student, average: Sequence[Tensor]) -> None:
        self._pairs = list(zip(student.parameters(), average, strict=True))

    def __enter__(self) -> None:
        self._exchange()

    def __exit__(self, *_: object) -> None:
        self._exchange()

    def _exchange(self) -> None:
        for p, average in self._pairs:
            p.data, average.data = average.data, p.data


def _going_on(foretold: Tensor, counts: Tensor) -> Tensor:
    """The columns [batch, fewer] of the chains that go on: they foretold their token and have another to foretell.

    Where one dialogue has fewer of them than another, its places are filled with other chains.
    """
    wanted = foretold & counts
    most = min(int(wanted.sum(1).max()), int(_GOING_ON * counts.shape[1]) + 1)
    order = wanted + 0.5 * counts + 0.4 * torch.rand(counts.shape, device=counts.device)
    return order.argsort(1, descending=True)[:, :most]
