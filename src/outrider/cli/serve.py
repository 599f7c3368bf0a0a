"""`outrider serve`: an OpenAI-compatible server."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli import display
from outrider.cli.options import ModelOptions, flag, grouped
from outrider.errors import RequestError

if TYPE_CHECKING:
    from outrider.llm import LLM

SERVER = "Server"

EXAMPLES = """[bold]Examples[/bold]

outrider serve

outrider serve my-model.gguf --port 8080

OUTRIDER_API_KEY=secret outrider serve --host 0.0.0.0
"""


@grouped
def serve(
    name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="As --model.", show_default=False)
    ] = None,
    *,
    host: Annotated[
        str, flag("Address to listen on; one that others can reach needs a key.", panel=SERVER, metavar="ADDRESS")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one.", rich_help_panel=SERVER, min=0, max=65535)] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="Demand it of clients. Better given as OUTRIDER_API_KEY: other users can see a command's options.",
            envvar="OUTRIDER_API_KEY", rich_help_panel=SERVER, metavar="KEY", show_default=False,
        ),
    ] = None,
    max_batch: Annotated[int, flag("Texts that are written together.", panel=SERVER)] = 8,
    queue: Annotated[int, typer.Option(help="Texts that may wait.", rich_help_panel=SERVER, min=0)] = 64,
    timeout: Annotated[float, typer.Option(help="Seconds for a request.", rich_help_panel=SERVER, min=0.1)] = 600.0,
    model: ModelOptions,
) -> None:  # fmt: skip
    """Serve the model to programs that speak OpenAI's API, and a page to try it at /."""
    try:
        from outrider.server import run
        from outrider.server.guard import is_loopback
        from outrider.server.settings import Settings
    except ImportError as error:
        raise RequestError(f"the server needs more packages ({error.name}): pip install 'outrider[serve]'") from None
    local = is_loopback(host)
    if not api_key and not local:
        raise RequestError(
            f"host={host!r} can be reached by others, so it needs a key: set OUTRIDER_API_KEY, or give --api-key"
        )
    if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key != ""):
        raise RequestError("the API key is not possible; allowed: printable ASCII characters, no spaces around them")
    if name is not None:
        model = replace(model, model=name)
    settings = Settings(api_key=api_key, local=local, queue=queue, timeout=timeout)
    with run.listen(host, port) as listener:  # before the model is loaded: a port that is taken is told at once
        llm = model.load(max_batch=max_batch)
        display.note(_described(llm, run.url(listener)))
        run.Server(llm, settings).run(sockets=[listener])


def _described(llm: LLM, url: str) -> str:
    if llm.speculation.length == 0:
        drafting = "speculation off"
    else:
        costs = ", ".join(f"{llm.costs.v(n):.2f}" for n in (2, 4, 8))
        drafters = ", ".join(llm.drafters) + (f" of {llm.draft}" if llm.draft else "")
        drafting = (
            f"speculation {llm.speculation} by {drafters} (passes of 2, 4, 8 rows take {costs} times one row's time)"
        )
    return f"{llm.name} ({llm.path.name}), {llm.context_length} tokens of context, {drafting}: {url}"
