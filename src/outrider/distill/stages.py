"""What every distillation has: what is asked for, how far it is, and the stage of the self-interview."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from outrider.distill import corpus
from outrider.distill.clock import Clock
from outrider.distill.target import Target
from outrider.llm import LLM

KINDS = ("eagle", "model", "followers")
INTERVIEW, FEATURES, TRAINING, TIMING = STAGES = ("interview", "features", "training", "timing")

CONTEXT = 1024
"""Most tokens of a dialogue."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked for.

    corpus   a JSON Lines file of dialogues; None: the target interviews itself.
    budget   seconds, of all stages and sittings together.
    start    an EAGLE-3 head's files, to train on from; None: from the target's own weights.
    resume   go on with what the folder holds.
    aside    texts of which no 13 words in a row may be in the corpus.
    prompts  of users, which the target answers in the interview, too.
    """

    target: Path
    folder: Path
    corpus: Path | None
    budget: float
    kind: str
    seed: int
    start: Path | None
    resume: bool
    aside: tuple[str, ...]
    prompts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage is: `done` of `total`, and a few words."""

    stage: str
    done: float
    total: float
    note: str


class Card(Protocol):
    """What came of it."""

    def card(self) -> str:
        """For people, in Markdown."""
        ...


class Distilling(Protocol):
    """A distillation in one folder."""

    @property
    def report(self) -> Card | None:
        """What came of it so far, once something was measured."""
        ...

    def run(self) -> Generator[Progress, None, None]:
        """All stages. Whenever this is closed, what was done is kept. Raises RequestError if another is at work."""
        ...


def interview(settings: Settings, target: Target, clock: Clock, path: Path, share: float) -> Iterator[Progress]:
    """Let the target add to the corpus at `path`, for that share of the budget."""
    total = share * settings.budget
    context = min(CONTEXT, target.shape.context)
    if clock.spent(INTERVIEW) >= total:
        return
    llm = LLM(target.path, max_batch=corpus.TOGETHER, context_length=context, kv_tokens=corpus.TOGETHER * context)
    prompts = corpus.fitting(llm, settings.prompts)
    left_out = len(settings.prompts) - len(prompts)
    note = f", {left_out} prompts left out that do not fit into {context} tokens with an answer" if left_out else ""
    asking = corpus.interview(llm, path, seed=settings.seed, aside=settings.aside, prompts=prompts)
    with closing(asking) as growing:
        for tokens in growing:
            spent = clock.spent(INTERVIEW)
            yield Progress(INTERVIEW, min(spent, total), total, f"{tokens:,} tokens answered{note}")
            if spent >= total:
                return
