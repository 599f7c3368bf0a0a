"""How much of a student's drafts its target accepts, as figures; `evaluate` measures them."""

from __future__ import annotations

from dataclasses import dataclass

DRAFTED = 5
"""Length of the chains."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of chains along the held-out answers.

    per_position     how often the token at that place of a chain is accepted, given that those before it were.
    tokens_per_step  of drafting along the answers: accepted tokens and one more, a step.
    overlap          sum of min(p, q) of the first drafted token: its acceptance when sampling at temperature 1.
    places           where chains began.
    """

    per_position: tuple[float, ...]
    tokens_per_step: float
    overlap: float
    places: int
