"""`outrider distill`: train a draft for a target on this machine. Ctrl-C keeps what was done; `--resume` goes on."""

from __future__ import annotations

import math
import re
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer
from rich.console import Console
from rich.markdown import Markdown

from outrider.cli import display, interrupt
from outrider.cli.options import flag
from outrider.errors import RequestError

if TYPE_CHECKING:
    from rich.progress import TaskID

    from outrider.distill import Distilling
    from outrider.distill import Progress as Stage
    from outrider.tokenizer import Message

EXAMPLES = """[bold]Examples[/bold]

outrider distill smollm2 -o my-draft --budget 4h

outrider distill smollm2 -o my-draft --budget 6h --resume

outrider distill path/to/model.gguf -o my-draft --prompts asked.txt --budget 4h

outrider distill path/to/model.gguf -o table --kind followers --budget 15m

outrider distill path/to/model.gguf -o small --kind model --corpus chats.jsonl
"""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TITLES = {
    "interview": "Interviewing the target",
    "features": "Reading the corpus",
    "training": "Training",
    "timing": "Counting and timing",
}
_TELL_EVERY = 30.0  # seconds


def distill(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="An alias, fetched on first use, or a .gguf file.")],
    *,
    folder: Annotated[
        Path, flag("Folder for the draft, its report, and what going on needs.", "--output", "-o", metavar="DIR")
    ],
    corpus: Annotated[
        Path | None, flag("JSON lines of conversations, each an object with messages. Default: the target interviews "
                          "itself, for a third of the budget.", metavar="FILE")
    ] = None,
    budget: Annotated[
        str, flag("Time for everything, all sittings together: a number and s, m, h or d.", metavar="TIME")
    ] = "60m",
    kind: Annotated[
        str, flag("eagle: a head that reads the target's hidden states; model: a small model of its own; followers: a "
                  "table of what it mostly says, in minutes and without PyTorch, which the others bring as well.",
                  metavar="eagle|model|followers")
    ] = "eagle",
    start: Annotated[
        Path | None, flag("An EAGLE-3 head to train on from: a folder, or a .safetensors file.", metavar="DRAFT")
    ] = None,
    prompts: Annotated[
        Path | None, flag("Prompts of your users, one a line, or JSON lines as for generate: the target answers (the "
                          "first turn of) each in the interview, beside what it asks itself.", metavar="FILE")
    ] = None,
    exclude: Annotated[
        Path | None, flag("Prompts, one a line, or JSON lines as for generate: no 13 words in a row of them come into "
                          "the corpus, so that they can be measured on.", metavar="FILE")
    ] = None,
    resume: Annotated[bool, flag("Go on with what is in the folder.", "--resume")] = False,
    seed: Annotated[int, flag("Of the questions' openings, and of training.")] = 0,
) -> None:  # fmt: skip
    """Train a draft for a model, on this machine, from the model's own texts.

    eagle and model need the extra 'distill': pip install 'outrider\\[distill]'. They are measured on texts kept out of
    training, all along.
    """
    from outrider.distill import Settings, begin
    from outrider.weights import hub

    seconds = _seconds(budget)
    aside = _texts(exclude) if exclude else ()
    asked = _questions(prompts) if prompts else ()
    with display.Download() as download:
        path = hub.resolve(target, progress=download)
    settings = Settings(
        target=path,
        folder=folder,
        corpus=corpus,
        budget=seconds,
        kind=kind,
        seed=seed,
        start=start,
        resume=resume,
        aside=aside,
        prompts=asked,
    )
    distillation = begin(settings)
    finished = _run(distillation)
    if distillation.report is not None:
        Console().print(Markdown(distillation.report.card()))
    if not finished:
        print(f"stopped; everything is kept in {folder}: go on with --resume")
        raise typer.Exit(130)


class _Bars:
    """How far each stage is: bars on stderr, or a line now and then where that is no terminal."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(20),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
            refresh_per_second=1,  # drawing takes time from the training
        )
        self._tasks: dict[str, TaskID] = {}
        self._told = -math.inf

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, progress: Stage) -> None:
        """Draw it."""
        new = progress.stage not in self._tasks
        if new:
            self._tasks[progress.stage] = self._progress.add_task(_TITLES[progress.stage], note="")
        task = self._tasks[progress.stage]
        self._progress.update(task, completed=progress.done, total=progress.total, note=progress.note)
        if self._progress.disable and (new or time.monotonic() - self._told > _TELL_EVERY):
            share = progress.done / progress.total if progress.total else 1.0
            display.note(f"{_TITLES[progress.stage]}: {share:.0%}, {progress.note}")
            self._told = time.monotonic()


def _run(distillation: Distilling) -> bool:
    """Run it and show how far it is; False if Ctrl-C ended it."""
    with interrupt.noticed() as asked, _Bars() as bars, closing(distillation.run()) as run:
        for progress in run:
            bars.show(progress)
            if asked():
                return False
    return True


def _seconds(budget: str) -> float:
    """Reads a time such as 90s or 1.5h. Raises RequestError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", budget.strip())
    if match is None or not float(match[1]) > 0:
        raise RequestError(f"budget={budget!r} is not possible; allowed: a number and s, m, h or d, such as 90m")
    return float(match[1]) * _UNITS[match[2]]


def _texts(path: Path) -> tuple[str, ...]:
    """What the prompts of a file say."""
    return tuple(message["content"] for messages in _conversations(path) for message in messages)


def _questions(path: Path) -> tuple[str, ...]:
    """What the user says first in each of the prompts of a file: what comes later depends on answers that it had."""
    firsts = (next((m["content"] for m in messages if m["role"] == "user"), None) for messages in _conversations(path))
    return tuple(first for first in firsts if first is not None)


def _conversations(path: Path) -> list[list[Message]]:
    from outrider.cli.prompts import read_prompts

    entries = read_prompts(path, raw=False, system=None)
    return [[message for message in entry.prompt if isinstance(message, dict)] for entry in entries]
