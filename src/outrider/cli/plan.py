"""`outrider plan`: what speculation brings on this machine, predicted and measured, and why."""

from __future__ import annotations

import json as encoding
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli import display
from outrider.cli.files import check_writable
from outrider.cli.options import flag

EXAMPLES = """[bold]Examples[/bold]

outrider plan smollm2

outrider plan path/to/model.gguf --prompts mine.jsonl --html plan.html
"""


def plan(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="An alias, fetched on first use, or a .gguf file.")
    ] = "smollm2",
    *,
    draft: Annotated[
        str | None, flag("What drafts as well: a smaller model with the same vocabulary, or an EAGLE-3 head.",
                         metavar="NAME|FILE|FOLDER")
    ] = None,
    prompts: Annotated[
        Path | None, flag("Plan for these prompts, one a line, or JSON lines as for generate; of more than 24, every "
                          "so many-th. Default: eight short ones.", metavar="FILE")
    ] = None,
    raw: Annotated[bool, flag("Continue the prompts as they stand, without the chat template.", "--raw")] = False,
    max_tokens: Annotated[int, flag("Most tokens of an answer.", "--max-tokens", "-n")] = 64,
    threads: Annotated[int | None, flag("Default: all processors that this process may use.")] = None,
    recalibrate: Annotated[bool, flag("Measure anew what rows cost.", "--recalibrate")] = False,
    json: Annotated[bool, flag("Print one JSON object with every figure.", "--json")] = False,
    html: Annotated[Path | None, flag("Write the plan there, too, as one HTML page.", metavar="FILE")] = None,
) -> None:  # fmt: skip
    """Predict and measure what speculation brings on this machine.

    Says what rows of a pass and drafted tokens cost, how many are accepted, what speed-up follows for every number of
    drafted tokens, which is best and why; then measures that, and the automatic choice, against plain decoding.
    """
    from outrider import plan as planning
    from outrider.cli.prompts import read_prompts, to_prompt
    from outrider.llm import LLM
    from outrider.plan import html as page
    from outrider.plan import report
    from outrider.sampling import SamplingParams

    if html is not None:
        check_writable(html)
    params = SamplingParams(max_tokens=max_tokens)
    if prompts is not None:
        texts = [entry.prompt for entry in read_prompts(prompts, raw=raw, system=None)]
    else:
        texts = [to_prompt(text, raw=raw, system=None) for text in planning.PROMPTS]
    with display.Download() as download:
        llm = LLM(target, draft=draft, threads=threads, recalibrate=recalibrate, progress=download)
    with display.rounds() as bar:
        task = bar.add_task("")

        def tell(doing: str, done: int, total: int) -> None:
            bar.update(task, description=doing, completed=done, total=total)
            bar.refresh()  # between texts, so that it disturbs no timing

        found = planning.plan(llm, texts, params, progress=tell)
    print(encoding.dumps(report.as_json(found), ensure_ascii=False) if json else report.as_text(found), flush=True)
    if html is not None:  # last, so that the plan is out whatever becomes of the file
        html.write_text(page.as_html(found), encoding="utf-8")
