"""A table of followers for a target: interview, counting, report. It needs no PyTorch.

tabulation = Tabulation(settings)
for progress in tabulation.run(): ...       # may be closed at any time
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

from outrider.distill import corpus, followers, speed
from outrider.distill.clock import Clock
from outrider.distill.report import TableReport, kinds, provenance, template_sha256
from outrider.distill.stages import INTERVIEW, TIMING, Progress, Settings, interview
from outrider.distill.target import Target
from outrider.distill.workplace import Workplace
from outrider.drafts import FOLLOWERS, made_for
from outrider.tokenizer import Tokenizer
from outrider.weights.followers import save

INTERVIEW_SHARE = 0.95


class Tabulation:
    """A distillation of kind "followers"; see `stages.Distilling`."""

    def __init__(self, settings: Settings) -> None:
        """Raises RequestError if the folder is in use and is not to be gone on with, or the other way round."""
        self.settings = settings
        self.target = Target(settings.target)
        self.report: TableReport | None = None
        self._workplace = Workplace.of(settings, self.target)
        self._clock = Clock(self._workplace.folder / "clock.json")

    def run(self) -> Generator[Progress, None, None]:
        """All stages."""
        path = self._workplace.corpus
        with self._workplace.held():
            if self._workplace.interviews:
                stage = interview(self.settings, self.target, self._clock, path, INTERVIEW_SHARE)
                yield from self._clock.timing(INTERVIEW, stage)
            yield from self._clock.timing(TIMING, self._count())

    def _count(self) -> Iterator[Progress]:
        yield Progress(TIMING, 0, 2, "counting")
        target, folder = self.target, self.settings.folder
        tokenizer = Tokenizer.from_metadata(target.gguf.metadata, str(target.path))
        dialogues = corpus.read(self._workplace.corpus, tokenizer)
        trained, held = corpus.split(len(dialogues))
        table = followers.table([dialogues[number] for number in trained])
        save(table, folder / FOLLOWERS, made_for(target.path))
        command, versions = provenance()
        self.report = TableReport(
            kind=self.settings.kind,
            command=command,
            versions=versions,
            target=str(target.path),
            target_sha256=target.sha256,
            chat_template_sha256=template_sha256(target),
            seed=self.settings.seed,
            dialogues=kinds(dialogues),
            answer_tokens=corpus.answer_tokens(dialogues),
            held_out=len(held),
            seconds={INTERVIEW: round(self._clock.spent(INTERVIEW), 1)},
            grams={order: len(keys) for order, (keys, _, _) in table.parts.items()},
        )
        self.report.write(folder)
        yield Progress(TIMING, 1, 2, "answering questions with it and without")
        asked = [dialogues[number] for number in held[: speed.TEXTS]]
        prompts = [dialogue.tokens[: dialogue.answers[0][0]] for dialogue in asked]
        self.report = replace(self.report, speed=speed.of_followers(target.path, folder, prompts))
        self.report.write(folder)
        yield Progress(TIMING, 2, 2, "")
