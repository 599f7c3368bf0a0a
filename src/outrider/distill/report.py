"""What came of a distillation and how: `report.json`, for programs, and a model card for people, beside the weights."""

from __future__ import annotations

import json
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import metadata
from pathlib import Path

from outrider.distill.acceptance import DRAFTED, Acceptance
from outrider.distill.interview import Dialogue
from outrider.distill.speed import Speed
from outrider.distill.target import Target

REPORT_FILE, CARD_FILE = "report.json", "README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Provenance, and what was measured on this machine.

    held_out  dialogues that are measured on.
    seconds   of each stage, over all sittings.
    speed     None: not measured yet.
    """

    kind: str
    command: tuple[str, ...]
    versions: dict[str, str]
    target: str
    target_sha256: str
    chat_template_sha256: str
    seed: int
    dialogues: dict[str, int]
    answer_tokens: int
    held_out: int
    seconds: dict[str, float]
    speed: Speed | None = None

    def write(self, folder: Path) -> None:
        """Write both files."""
        (folder / REPORT_FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", "utf-8")
        (folder / CARD_FILE).write_text(self.card(), "utf-8")

    def card(self) -> str:
        """The model card, in Markdown."""
        what, facts = self._what()
        return "\n".join(
            (
                f"# A draft for {Path(self.target).stem}",
                "",
                f"{what}: it proposes the next tokens of one target model, which checks them; the text is the target's "
                "own, with or without it.",
                "",
                f"- target: `{Path(self.target).name}`, SHA-256 `{self.target_sha256}`",
                *(f"- {fact}" for fact in facts),
                f"- made from: {sum(self.dialogues.values()):,} dialogues, {self.answer_tokens:,} tokens answered by "
                "the target",
                "- time: " + ", ".join(f"{name} {seconds / 60:.1f} min" for name, seconds in self.seconds.items()),
                "- made by: `" + " ".join(self.command) + "` with "
                + ", ".join(f"{name} {version}" for name, version in self.versions.items()),
                "",
                *self._figures(),
                *self._speeds(),
            )
        )  # fmt: skip

    def _what(self) -> tuple[str, Sequence[str]]:
        """What it is, and facts about that."""
        raise NotImplementedError

    def _figures(self) -> tuple[str, ...]:
        """What was measured beside speed."""
        return ()

    def _speeds(self) -> tuple[str, ...]:
        """The part of the card about this machine."""
        if (speed := self.speed) is None:
            return ()
        rows = (f"| {way} | {speed.tokens_per_step[way]:.2f} | {times:.2f} |" for way, times in speed.measured.items())
        lines = (
            f"On the machine that made it, {speed.texts} held-out questions, greedy, in times of plain decoding:",
            "",
            "| drafts | tokens per step | speed |",
            "|---|---|---|",
            *rows,
            "",
        )
        if (theory := speed.prediction) is None:
            return lines
        return (
            *lines,
            f"Predicted for chains of {DRAFTED}: {theory.predicted:.2f}, from the tokens per step above, "
            f"c = {theory.c:.3f} and v({DRAFTED + 1}) = {theory.v:.2f}.",
            "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentReport(Report):
    """Of a trained draft.

    tokens  chain starts that were trained on, repetitions included.
    """

    draft_vocabulary: int
    parameters: int
    steps: int
    tokens: int
    acceptance: Acceptance

    def _what(self) -> tuple[str, Sequence[str]]:
        return "An EAGLE-3 draft head" if self.kind == "eagle" else "A standalone draft model", (
            f"parameters: {self.parameters:,}; tokens it can propose: {self.draft_vocabulary:,}",
            f"trained on {self.tokens:,} positions in {self.steps:,} steps",
        )

    def _figures(self) -> tuple[str, ...]:
        rates = " | ".join(f"{rate:.3f}" for rate in self.acceptance.per_position)
        return (
            f"Measured on {self.held_out} dialogues kept out of training ({self.acceptance.places:,} places), "
            f"greedy, chains of {DRAFTED}:",
            "",
            "| token of the chain | " + " | ".join(str(n) for n in range(1, DRAFTED + 1)) + " |",
            "|" + "---|" * (DRAFTED + 1),
            f"| accepted, if those before it were | {rates} |",
            "",
            f"{self.acceptance.tokens_per_step:.2f} tokens per step; first drafted token at temperature 1: "
            f"{self.acceptance.overlap:.3f}.",
            "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport(Report):
    """Of a table of followers.

    grams  by length, how many n-grams it knows.
    """

    grams: dict[int, int]

    def _what(self) -> tuple[str, Sequence[str]]:
        known = ", ".join(f"{count:,} of {n}" for n, count in sorted(self.grams.items()))
        return "A table of followers", (f"n-grams by length in tokens: {known}",)


def provenance() -> tuple[tuple[str, ...], dict[str, str]]:
    """The command line of this process, and the versions of what took part."""
    found = {"python": platform.python_version()}
    for name in ("outrider", "torch", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "(not installed)"
    return ("outrider", *sys.argv[1:]), found


def kinds(dialogues: Sequence[Dialogue]) -> dict[str, int]:
    """How many dialogues there are of each kind."""
    return dict(sorted(Counter(dialogue.kind for dialogue in dialogues).items()))


def template_sha256(target: Target) -> str:
    """Of the chat template, in hexadecimal."""
    return sha256(target.gguf.text("tokenizer.chat_template", default="").encode()).hexdigest()
