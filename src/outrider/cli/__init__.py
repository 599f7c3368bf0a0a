"""The command line: one small file per command, nothing but arguments and printing.

Errors are one line on stderr and exit code 1, wrong usage is 2, Ctrl-C 130, a reader that went away 141.
"""

from __future__ import annotations

import sys
from importlib import metadata
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from outrider.cli import display
from outrider.cli.certify import EXAMPLES as CERTIFY_EXAMPLES
from outrider.cli.certify import certify
from outrider.cli.chat import EXAMPLES as CHAT_EXAMPLES
from outrider.cli.chat import chat
from outrider.cli.distill import EXAMPLES as DISTILL_EXAMPLES
from outrider.cli.distill import distill
from outrider.cli.export import EXAMPLES as EXPORT_EXAMPLES
from outrider.cli.export import export
from outrider.cli.generate import EXAMPLES as GENERATE_EXAMPLES
from outrider.cli.generate import generate
from outrider.cli.plan import EXAMPLES as PLAN_EXAMPLES
from outrider.cli.plan import plan
from outrider.cli.serve import EXAMPLES as SERVE_EXAMPLES
from outrider.cli.serve import serve
from outrider.errors import OutriderError


class _Group(TyperGroup):
    """Commands whose ends are exit codes, never tracebacks."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            display.settle_stdout()
            raise typer.Exit(141) from None
        except (OutriderError, OSError) as error:
            display.report(error)
            display.settle_stdout()
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Group,
    name="outrider",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=GENERATE_EXAMPLES)(generate)
app.command(epilog=CHAT_EXAMPLES)(chat)
app.command(epilog=PLAN_EXAMPLES)(plan)
app.command(epilog=SERVE_EXAMPLES)(serve)
app.command(epilog=CERTIFY_EXAMPLES)(certify)
app.command(epilog=EXPORT_EXAMPLES)(export)
app.command(epilog=DISTILL_EXAMPLES)(distill)


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            version = metadata.version("outrider")
        except metadata.PackageNotFoundError:
            version = "(not installed)"
        print("outrider", version)
        raise typer.Exit


@app.callback()
def outrider(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Speculative decoding for people who host models themselves: the model's own text, sooner."""


def main() -> None:
    """The entry point."""
    # UTF-8 also under LANG=C. Bytes that are none become surrogates, which the tokenizer refuses with a clear error.
    for stream, errors in (
        (sys.stdin, "surrogateescape"),
        (sys.stdout, "backslashreplace"),
        (sys.stderr, "backslashreplace"),
    ):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)
    app()
