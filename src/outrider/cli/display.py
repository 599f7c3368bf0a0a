"""What a terminal shows: text as it is written, one dim line of figures, progress, errors.

Answers go to stdout and nothing else does; colours and bars appear only where there is a terminal to show them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Progress

    from outrider.llm import LLM, Completion
    from outrider.request import Emitted

# A model may write anything, also what a terminal takes for commands: show control characters as pictures.
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_CONTROLS |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def printable(text: str) -> str:
    """The text without anything that could control a terminal."""
    return text.translate(_CONTROLS)


class Answer:
    """Prints one text on stdout, piece by piece; used as a context, it ends the last line.

    show_drafts  tokens that a drafter guessed are coloured, or underlined where NO_COLOR is set.
    """

    def __init__(self, *, show_drafts: bool = False) -> None:
        console = Console()
        self._terminal = console.is_terminal
        self._accepted = _accepted_style(console) if show_drafts else Style()
        self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._open and not (kind and issubclass(kind, OSError)):  # else stdout takes nothing any more
            print(flush=True)

    def add(self, emitted: Emitted) -> None:
        """Print what a step added, at once."""
        if not emitted.text:
            return
        for piece in emitted.pieces:
            text = printable(piece.text) if self._terminal else piece.text
            if piece.source == "accepted":
                text = self._accepted.render(text, color_system=ColorSystem.STANDARD)
            sys.stdout.write(text)
        sys.stdout.flush()
        self._open = not emitted.text.endswith("\n")


def can_show_drafts() -> bool:
    """Whether stdout is a terminal that can set drafts off."""
    console = Console()
    return console.is_terminal and not console.is_dumb_terminal


def legend() -> None:
    """Say what `Answer(show_drafts=True)` looks like."""
    style = _accepted_style(Console())
    look = "Underlined" if style.underline else "Green"
    _stderr().print(Text.assemble((look, style), (" text was drafted, and accepted by the model.", "dim")))


def figures(completion: Completion, llm: LLM) -> str:
    """One line about how a text came about."""
    count = completion.completion_tokens
    parts = [f"{count} token{'s' if count != 1 else ''}", f"{completion.tokens_per_second:.1f} tokens/s"]
    parts.append(f"{completion.tokens_per_step:.2f} tokens per step")
    if completion.drafted:
        parts.append(acceptance(completion))
    else:
        parts.append("speculation off" if llm.speculation.length == 0 else f"nothing drafted ({llm.speculation})")
    if completion.finish_reason == "length":
        full = completion.prompt_tokens + count >= llm.context_length
        parts.append("cut off: the context is full" if full else "cut off by --max-tokens")
    elif completion.finish_reason == "cancelled":
        parts.append("interrupted")
    return ", ".join(parts)


def acceptance(completion: Completion) -> str:
    """How much of what was drafted was accepted, and whose drafts they were."""
    drafters = "+".join(completion.drafters)
    return f"{completion.acceptance_rate:.0%} of {completion.drafted} drafts accepted ({drafters})"


def note(text: str) -> None:
    """A dim line on stderr."""
    _stderr().print(Text(text, style="dim"))


def report(error: Exception) -> None:
    """An error as one line on stderr."""
    message = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    message = " ".join(message.split()) or type(error).__name__
    _stderr().print(Text.assemble(("error: ", "bold red"), printable(message)))


def settle_stdout() -> None:
    """Flush stdout; if nobody takes what is left, let the interpreter flush it into nothing."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Download:
    """The progress of a download on stderr, as a context and then a ProgressCallback; one line without a terminal."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._description = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.stop()

    def __call__(self, description: str, done: int, total: int | None) -> None:
        if self._progress is None:
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

            console = Console(stderr=True)
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                console=console,
                disable=not console.is_terminal,
                transient=True,
            )
            self._progress.start()
        if description != self._description:
            self._description = description
            self._task = self._progress.add_task(description, total=None)
            if self._progress.disable:
                note(f"{description} ...")
        self._progress.update(self._task, completed=done, total=total)


class Batch:
    """Answers to many prompts, a line each, and a bar on stderr if that is a terminal; used as a context.

    output  the file to write; None: stdout.
    """

    def __init__(self, prompts: int, output: Path | None) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("Prompts"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            refresh_per_second=4,  # drawing takes time from the model
            transient=True,
        )
        self._task = self._progress.add_task("", total=prompts, speed="")
        self._output = output
        self._file = sys.stdout

    def __enter__(self) -> Self:
        if self._output is not None:
            self._file = self._output.open("w", encoding="utf-8", errors="backslashreplace")  # as stdout
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        if self._output is not None:
            self._file.close()

    def update(self, finished: int, tokens_per_second: float) -> None:
        """So many prompts are finished."""
        self._progress.update(self._task, completed=finished, speed=f"{tokens_per_second:.0f} tokens/s")

    def write(self, line: str) -> None:
        """Write a line; where that goes to the same terminal, above the bar."""
        if self._file.isatty() and not self._progress.disable:
            self._progress.console.print(Text(line), soft_wrap=True)
        else:
            print(line, file=self._file, flush=True)


def rounds() -> Progress:
    """A bar on stderr if that is a terminal, for `bar.track`; drawn between rounds, so as not to disturb timing."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        disable=not console.is_terminal,
        auto_refresh=False,
        transient=True,
    )


def _stderr() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def _accepted_style(console: Console) -> Style:
    return Style(underline=True) if console.no_color else Style(color="green")
