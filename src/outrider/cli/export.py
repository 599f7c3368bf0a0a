"""`outrider export`: a draft head in the official EAGLE-3 layout, for other engines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli import display
from outrider.cli.options import flag

EXAMPLES = """[bold]Examples[/bold]

outrider export -o eagle-smollm2

outrider export head.safetensors -o eagle --dtype f16
"""


def export(
    head: Annotated[
        Path | None,
        typer.Argument(
            metavar="HEAD",
            help="A compact file, or a folder. Default: the head that ships for the model.",
            show_default=False,
        ),
    ] = None,
    *,
    output: Annotated[Path, flag("The folder to write; it must not exist yet.", "--output", "-o", metavar="FOLDER")],
    model: Annotated[
        str, flag("Whose head: an alias or a .gguf file.", "--model", "-m", metavar="NAME|FILE")
    ] = "smollm2",
    dtype: Annotated[str, flag("Precision of the weights.", metavar="bf16|f16")] = "bf16",
) -> None:
    """Write a draft head as config.json and model.safetensors, as SafeAILab/EAGLE, vLLM and SGLang read it."""
    if dtype not in ("bf16", "f16"):
        raise typer.BadParameter(f"{dtype!r} is neither bf16 nor f16", param_hint="--dtype")
    if output.exists():
        raise typer.BadParameter(f"{output} exists already", param_hint="--output")
    from outrider import drafts
    from outrider.errors import RequestError
    from outrider.heads.checkpoint import read_compact, read_official, write_official
    from outrider.weights import hub

    path = head
    if path is None:
        path = drafts.shipped(hub.resolve(model)).weights
        if path is None:
            raise RequestError(f"no draft head ships for {model!r}; name the head's file")
    loaded = read_official(path) if path.is_dir() else read_compact(path)
    write_official(loaded, output, "BF16" if dtype == "bf16" else "F16")
    display.note(f"{output}: config.json and model.safetensors, {dtype}")
