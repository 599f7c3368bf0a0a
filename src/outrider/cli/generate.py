"""`outrider generate`: one answer as it is written, or those to a file of prompts."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli import display
from outrider.cli.files import check_writable
from outrider.cli.options import ModelOptions, SamplingOptions, flag, grouped

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.request import Request

PROMPT, OUTPUT = "Prompt", "Output"

EXAMPLES = """[bold]Examples[/bold]

outrider generate "Explain how a bicycle stays upright."

git diff | outrider generate --system "Summarise this change in one line."

outrider generate --prediction a.txt --compare "Correct this text: $(cat a.txt)"

outrider generate --prompts questions.jsonl --output answers.jsonl -n 200
"""


@grouped
def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT", help="What to answer. Without it, or as -, it is read from stdin.", show_default=False
        ),
    ] = None,
    *,
    prompts: Annotated[
        Path | None,
        flag(
            "Answer many prompts in one batch, with one JSON object a line, in their order. One prompt a line; or "
            'JSON lines: strings, or objects with "prompt" or "messages"; or Spec-Bench\'s format, of which the '
            "first of the turns is answered.",
            panel=PROMPT,
            metavar="FILE",
        ),
    ] = None,
    system: Annotated[str | None, flag("A system message to put first.", panel=PROMPT, metavar="TEXT")] = None,
    raw: Annotated[
        bool, flag("Continue the prompt as it stands, without the model's chat template.", "--raw", panel=PROMPT)
    ] = False,
    prediction: Annotated[
        Path | None,
        flag(
            "Text that you expect as the answer, in part or whole: where it is right, it comes sooner.",
            panel=PROMPT,
            metavar="FILE",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        flag(
            "Write the answers to --prompts there, not to stdout.",
            panel=OUTPUT,
            metavar="FILE",
        ),
    ] = None,
    json: Annotated[bool, flag("Print one JSON object instead of the text.", "--json", panel=OUTPUT)] = False,
    logprobs: Annotated[
        int | None,
        flag("Put the log-probability of each token into the JSON, and of the N best.", panel=OUTPUT, metavar="N"),
    ] = None,
    show_drafts: Annotated[bool, flag("Colour what was drafted and accepted.", "--show-drafts", panel=OUTPUT)] = False,
    compare: Annotated[
        bool,
        flag("Time it plain and speculative, in turn; exit code 1 if the texts differ.", "--compare", panel=OUTPUT),
    ] = False,
    trace: Annotated[
        Path | None,
        flag("Write where the time of each step goes there, for chrome://tracing.", panel=OUTPUT, metavar="FILE"),
    ] = None,
    model: ModelOptions,
    sampling: SamplingOptions,
) -> None:
    """Answer a prompt, or a file of them.

    The answer goes to stdout as it is written, then one line of figures to stderr.
    """
    _refuse(
        ("PROMPT cannot go with --prompts", prompt is not None and prompts is not None),
        ("--output needs --prompts", output is not None and prompts is None),
        ("--system cannot go with --raw, which has no messages", system is not None and raw),
        ("--prediction cannot go with --prompts", prediction is not None and prompts is not None),
        ("--prediction needs --speculation", prediction is not None and model.speculation == "off"),
        ("--logprobs needs --json or --prompts", logprobs is not None and not json and prompts is None),
        ("--logprobs cannot go with --compare", logprobs is not None and compare),
        ("--compare cannot go with --prompts", compare and prompts is not None),
        ("--compare needs --speculation", compare and model.speculation == "off"),
        (
            "--compare cannot go with --learn-from-outputs, which would draft the answer from its own first writing",
            compare and model.learn_from_outputs,
        ),
        (
            "--compare cannot go with --acceptance rejection or block, which keep the distribution, not the text",
            compare and sampling.acceptance in ("rejection", "block"),
        ),
        ("--trace cannot go with --compare", trace is not None and compare),
        ("--show-drafts cannot go with --json", show_drafts and json),
        ("--show-drafts cannot go with --prompts", show_drafts and prompts is not None),
        ("--show-drafts cannot go with --compare", show_drafts and compare),
        ("--show-drafts needs --speculation", show_drafts and model.speculation == "off"),
        (
            "--show-drafts needs a terminal as stdout; FORCE_COLOR=1 colours anyway",
            show_drafts and not display.can_show_drafts(),
        ),
    )
    from outrider.cli.prompts import read_prompts, read_stdin, read_text, to_prompt

    if trace is not None:
        check_writable(trace)
    params = sampling.params(logprobs)
    if prompts is not None:
        from outrider.cli.batch import answer_all

        if output is not None and str(prompts) != "-" and output.exists() and output.samefile(prompts):
            raise typer.BadParameter("that is the file of the prompts", param_hint="--output")
        entries = read_prompts(prompts, raw=raw, system=system)
        llm = model.load()
        with _tracing(llm, trace):
            raise typer.Exit(answer_all(llm, entries, params, output))
    if prompt is None and sys.stdin.isatty():
        raise typer.BadParameter("give it as an argument, pipe it in, or use --prompts", param_hint="PROMPT")
    content = read_stdin() if prompt in (None, "-") else prompt
    ready = to_prompt(content, raw=raw, system=system)
    expected = read_text(prediction) if prediction else ""
    llm = model.load()
    if compare:
        from outrider.cli.compare import compare_speeds

        raise typer.Exit(compare_speeds(llm, ready, params, expected, json=json))
    with _tracing(llm, trace):
        request = llm.request(ready, params, prediction=expected)
        raise typer.Exit(_answer(llm, request, json=json, show_drafts=show_drafts))


def _tracing(llm: LLM, path: Path | None) -> AbstractContextManager[None]:
    """A trace of what the model does meanwhile, if one is wanted."""
    if path is None:
        return nullcontext()
    from outrider.trace import traced

    return traced(llm.engine, path)


def _answer(llm: LLM, request: Request, *, json: bool, show_drafts: bool) -> int:
    """Write one answer; returns the exit code."""
    from outrider.cli.interrupt import cancelling
    from outrider.cli.records import exit_code, record
    from outrider.llm import completion

    if show_drafts:
        display.legend()
    with cancelling(llm, [request]), display.Answer(show_drafts=show_drafts) as answer:
        for emitted in llm.run([request]):
            if not json:
                answer.add(emitted)
    done = completion(request)
    if json:
        print(record(llm.name, done), flush=True)
    elif done.error:
        display.report(done.error)
    else:
        display.note(display.figures(done, llm))
    return exit_code([done])


def _refuse(*combinations: tuple[str, bool]) -> None:
    """A usage error for the first of the combinations that was asked for."""
    for message, asked in combinations:
        if asked:
            raise typer.BadParameter(message)
