"""Training a student: corpus, features, training, report; each stage goes on where it was left.

    distillation = Distillation(settings)
    for progress in distillation.run(): ...       # may be closed at any time
    distillation.report.card()

In the folder: the draft's own files, a table of followers, `report.json` and a model card, and `work/`, which going on
needs; of that, `work/features` may be deleted at any time, and is computed again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from outrider.distill import corpus, followers, speed, vocabulary
from outrider.distill.acceptance import Acceptance
from outrider.distill.clock import Clock
from outrider.distill.draft import Draft
from outrider.distill.evaluate import evaluate
from outrider.distill.export import export
from outrider.distill.features import Features
from outrider.distill.head import Head
from outrider.distill.report import StudentReport, kinds, provenance, template_sha256
from outrider.distill.stages import FEATURES, INTERVIEW, STAGES, TRAINING, Progress, Settings, interview
from outrider.distill.student import Student
from outrider.distill.target import Target
from outrider.distill.train import Training
from outrider.distill.workplace import Workplace
from outrider.drafts import FOLLOWERS, made_for
from outrider.errors import RequestError
from outrider.heads import tap_layers
from outrider.tokenizer import Tokenizer
from outrider.weights.followers import save as save_table

INTERVIEW_SHARE = 1 / 3
"""Of the budget, if there is no corpus yet."""
DISK = 16 * 2**30
"""Bytes that features may take."""
_SAVE_EVERY = 45.0  # seconds
_MEASURED = 60  # dialogues held out, at most
_MEASURE_SHARE = 0.06  # of the training time


class Distillation:
    """A distillation of kind "eagle" or "model"; see `stages.Distilling`."""

    def __init__(self, settings: Settings) -> None:
        """Raises RequestError if the folder is in use and is not to be gone on with, or the other way round."""
        self.settings = settings
        self.target = Target(settings.target)
        self.report: StudentReport | None = None
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._layers = tap_layers(self.target.shape.layers) if settings.kind == "eagle" else ()
        self._workplace = Workplace.of(settings, self.target)
        self._checkpoint = self._workplace.folder / "checkpoint.pt"
        self._clock = Clock(self._workplace.folder / "clock.json")

    def run(self) -> Generator[Progress, None, None]:
        """All stages."""
        path = self._workplace.corpus
        with self._workplace.held():
            if self._workplace.interviews:
                yield from self._clock.timing(
                    INTERVIEW, interview(self.settings, self.target, self._clock, path, INTERVIEW_SHARE)
                )
            features = self._features(path)
            yield from self._clock.timing(FEATURES, self._compute(features))
            yield from self._clock.timing(TRAINING, self._train(features))

    def _features(self, path: Path) -> Features:
        tokenizer = Tokenizer.from_metadata(self.target.gguf.metadata, str(self.target.path))
        dialogues = [d for d in corpus.read(path, tokenizer) if len(d.tokens) <= self.target.shape.context]
        folder = self._workplace.folder
        features = Features(folder / "features", self.target, self._layers, dialogues, DISK)
        missing, free = features.nbytes - features.nbytes_done, shutil.disk_usage(folder).free
        if missing > free:
            raise RequestError(
                f"the features of {path} need {size(missing)} more in {folder}, which has {size(free)}; free some, "
                "choose another folder, or bring a smaller corpus"
            )
        return features

    def _compute(self, features: Features) -> Iterator[Progress]:
        total = len(features.dialogues)
        note = f"{size(features.nbytes)} on disk"
        yield Progress(FEATURES, features.done, total, note)
        for done in features.compute():
            yield Progress(FEATURES, done, total, note)
        trained, _ = corpus.split(features.done)
        table = followers.table([features.dialogues[number] for number in trained])
        save_table(table, self.settings.folder / FOLLOWERS, made_for(self.target.path))

    def _train(self, features: Features) -> Iterator[Progress]:
        trained, held = corpus.split(features.done)
        training = self._training(features)
        total = max(0.0, self.settings.budget - self._clock.spent(INTERVIEW) - self._clock.spent(FEATURES))
        clock = _Alarm(_SAVE_EVERY)
        measuring = 0.0
        note = ""
        try:
            for step in training.run(trained, lambda: self._clock.spent(TRAINING) / total if total > 0 else 1.0):
                spent = self._clock.spent(TRAINING)
                yield Progress(TRAINING, min(spent, total), total, f"loss {step.loss:.3f}{note}")
                if clock.rings():
                    training.save(self._checkpoint)
                if measuring <= _MEASURE_SHARE * spent:
                    began = time.monotonic()
                    note = self._measure(training, features, held)
                    measuring += time.monotonic() - began
        finally:
            training.save(self._checkpoint)
        note = self._measure(training, features, held).removeprefix("; ")
        yield Progress(TRAINING, total, total, f"{note}; timing")
        self._time(features, held)
        yield Progress(TRAINING, total, total, note)

    def _training(self, features: Features) -> Training:
        """As it was left, or from the start."""
        state = None
        if self._checkpoint.exists():
            state = torch.load(self._checkpoint, map_location=self.device, weights_only=True)
        training = Training(
            self._student(features, None if state is None else state["target_ids"]).to(self.device),
            features,
            seed=self.settings.seed,
            device=self.device,
        )
        if state is not None:
            training.load(state)
        return training

    def _student(self, features: Features, target_ids: Tensor | None) -> Student:
        torch.manual_seed(self.settings.seed)
        if self.settings.kind == "model":
            return Draft.of(self.target)
        if self.settings.start is not None and target_ids is None:
            head = Head.on_from(self.settings.start, self.target)
            return head.widened(vocabulary.frequent(features, head.target_ids), self.target)
        return Head.of(self.target, vocabulary.frequent(features) if target_ids is None else target_ids.cpu())

    def _measure(self, training: Training, features: Features, held: Sequence[int]) -> str:
        """Measure on held-out dialogues, write the draft and its report; a few words about it."""
        with training.averaged():
            acceptance = evaluate(training.student, features, held[:_MEASURED], self.device)
            export(training.student, self.target, self.settings.folder)
        self.report = self._reported(training, features, len(held[:_MEASURED]), acceptance)
        self.report.write(self.settings.folder)
        rates = " ".join(f"{rate:.2f}" for rate in acceptance.per_position)
        return f"; accepted {rates}; {acceptance.tokens_per_step:.2f} tokens per step"

    def _time(self, features: Features, held: Sequence[int]) -> None:
        """Answer some held-out questions with the draft, and without; the report tells of it."""
        assert self.report is not None
        folder = self.settings.folder
        asked = [features.dialogues[number] for number in held[: speed.TEXTS]]
        prompts = [dialogue.tokens[: dialogue.answers[0][0]] for dialogue in asked]
        timed = speed.of_draft(self.target.path, folder, self.settings.kind, prompts, self.report.acceptance)
        self.report = replace(self.report, speed=timed)
        self.report.write(folder)

    def _reported(self, training: Training, features: Features, held: int, acceptance: Acceptance) -> StudentReport:
        command, versions = provenance()
        return StudentReport(
            kind=self.settings.kind,
            command=command,
            versions=versions,
            target=str(self.target.path),
            target_sha256=self.target.sha256,
            chat_template_sha256=template_sha256(self.target),
            seed=self.settings.seed,
            dialogues=kinds(features.dialogues),
            answer_tokens=corpus.answer_tokens(features.dialogues),
            held_out=held,
            draft_vocabulary=len(training.student.target_ids),
            parameters=sum(p.numel() for p in training.student.parameters()),
            seconds={stage: round(self._clock.spent(stage), 1) for stage in STAGES[:3]},
            steps=training.steps,
            tokens=training.tokens,
            acceptance=acceptance,
        )


class _Alarm:
    """Rings when so many seconds have passed since it last rang."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    def rings(self) -> bool:
        if time.monotonic() - self._last < self._seconds:
            return False
        self._last = time.monotonic()
        return True


def size(nbytes: int) -> str:
    """Bytes for people."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"
