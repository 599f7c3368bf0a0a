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

from outrider.distill.evaluate import DRAFTED, Acceptance
from outrider.distill.interview import Dialogue
from outrider.distill.speed import Speed
from outrider.distill.target import Target

REPORT_FILE, CARD_FILE = "report.json", "README.md"


@dataclass(frozen=True, slots=True)
class Report:
    """Provenance and figures.

    seconds  of each stage, over all sittings.
    tokens   chain starts that were trained on, repetitions included.
    speed    None: not measured yet.
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
    draft_vocabulary: int
    parameters: int
    seconds: dict[str, float]
    steps: int
    tokens: int
    acceptance: Acceptance
    speed: Speed | None

    def write(self, folder: Path) -> None:
        """Write both files."""
        (folder / REPORT_FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", "utf-8")
        (folder / CARD_FILE).write_text(self.card(), "utf-8")

    def card(self) -> str:
        """The model card, in Markdown."""
        rates = " | ".join(f"{rate:.3f}" for rate in self.acceptance.per_position)
        what = "EAGLE-3 draft head" if self.kind == "eagle" else "standalone draft model"
        return "\n".join(
            (
                f"# A draft for {Path(self.target).stem}",
                "",
                f"A{'n' if what[0] in 'AEIOU' else ''} {what}: it proposes the next tokens of one target model, which "
                "checks them; the text is the target's own, with or without it.",
                "",
                f"- target: `{Path(self.target).name}`, SHA-256 `{self.target_sha256}`",
                f"- parameters: {self.parameters:,}; tokens it can propose: {self.draft_vocabulary:,}",
                f"- trained on: {sum(self.dialogues.values()):,} dialogues, {self.answer_tokens:,} tokens answered by "
                f"the target; {self.tokens:,} positions in {self.steps:,} steps",
                "- time: " + ", ".join(f"{name} {seconds / 60:.1f} min" for name, seconds in self.seconds.items()),
                "- made by: `" + " ".join(self.command) + "` with "
                + ", ".join(f"{name} {version}" for name, version in self.versions.items()),
                "",
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
                *self._speeds(),
            )
        )  # fmt: skip

    def _speeds(self) -> tuple[str, ...]:
        """The part of the card about this machine."""
        if (speed := self.speed) is None:
            return ()
        rows = (f"| {way} | {speed.tokens_per_step[way]:.2f} | {times:.2f} |" for way, times in speed.measured.items())
        return (
            f"On the machine that made it, {speed.texts} held-out questions, greedy, in times of plain decoding:",
            "",
            "| drafts | tokens per step | speed |",
            "|---|---|---|",
            *rows,
            "",
            f"Predicted for chains of {DRAFTED}: {speed.predicted:.2f}, from the tokens per step above, "
            f"c = {speed.c:.3f} and v({DRAFTED + 1}) = {speed.v:.2f}.",
            "",
        )


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
