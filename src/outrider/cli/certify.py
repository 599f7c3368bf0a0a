"""`outrider certify`: does speculation give the model's own text here? Prints a report; exit code 0 only if it does."""

from __future__ import annotations

import json as encoding
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from outrider.cli import display
from outrider.cli.files import check_writable
from outrider.cli.options import flag

if TYPE_CHECKING:
    from rich.progress import Progress

EXAMPLES = """[bold]Examples[/bold]

outrider certify --quick

outrider certify path/to/model.gguf --draft path/to/smaller.gguf --html certificate.html

outrider certify smollm2 --quick --prompts mine.txt --json > certificate.json
"""


def certify(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="An alias, fetched on first use, or a .gguf file.")
    ] = "smollm2",
    *,
    draft: Annotated[
        str | None, flag("What drafts for it: a smaller model with the same vocabulary, or an EAGLE-3 head.",
                         metavar="NAME|FILE|FOLDER")
    ] = None,
    quick: Annotated[
        bool, flag("Only so many settings that every two options meet, and fewer draws: some two minutes for a "
                   "small model. Without it, all settings: more than an hour.", "--quick")
    ] = False,
    prompts: Annotated[
        Path | None, flag("Compare the answers to these prompts, one a line, or JSON lines as for generate. "
                          "Default: nine short ones.", metavar="FILE")
    ] = None,
    seed: Annotated[int, flag("The same seed on the same machine gives the same figures.")] = 0,
    threads: Annotated[
        int | None, flag("Compare texts of one thread with those of so many. Default: as many as this process may use.")
    ] = None,
    json: Annotated[bool, flag("Print one JSON object with every figure instead of the tables.", "--json")] = False,
    html: Annotated[Path | None, flag("Write the report there, too, as one HTML page.", metavar="FILE")] = None,
) -> None:  # fmt: skip
    """Check that speculation gives the model's own text on this machine.

    Compares texts with plain decoding, counts draws against their probabilities, and plants faults, which must be seen.
    Exit code 0 only if all of that holds.
    """
    from outrider import certify as certifying
    from outrider.certify import html as page
    from outrider.certify import report
    from outrider.cli.prompts import read_prompts
    from outrider.weights import hub

    if html is not None:
        check_writable(html)
    texts = [entry.prompt for entry in read_prompts(prompts, raw=False, system=None)] if prompts else None
    with display.Download() as download:
        path = hub.resolve(target, progress=download)
    with _bar() as progress:
        task = progress.add_task("")
        certificate = certifying.certify(
            path,
            draft=draft,
            extent=certifying.QUICK if quick else certifying.FULL,
            prompts=certifying.PROMPTS if texts is None else texts,
            seed=seed,
            threads=threads,
            progress=lambda doing, done, total: progress.update(task, description=doing, completed=done, total=total),
        )
    if json:
        print(encoding.dumps(report.as_json(certificate), ensure_ascii=False), flush=True)
    else:
        console = Console()
        if not console.is_terminal:
            console.width = 120
        console.print(report.as_tables(certificate))
    if html is not None:  # last, so that the report is out whatever becomes of the file
        html.write_text(page.as_html(certificate), encoding="utf-8")
    raise typer.Exit(0 if certificate.holds else 1)


def _bar() -> Progress:
    """A bar on stderr, if that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        refresh_per_second=2,  # drawing takes time from the model
        transient=True,
    )
