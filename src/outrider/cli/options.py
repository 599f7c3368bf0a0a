"""Options that commands share, as dataclasses: `@grouped` makes a flag of each field of such a parameter.

@grouped
def chat(*, model: ModelOptions, sampling: SamplingOptions) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from outrider.cli import display
from outrider.errors import RequestError

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.sampling import SamplingParams

MODEL, SAMPLING = "Model", "Sampling"


def flag(help: str, *names: str, panel: str | None = None, metavar: str | None = None) -> Any:
    """A typer option; without names it is called as its parameter is."""
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar)


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model, and how it runs."""

    model: Annotated[
        str, flag("An alias, fetched on first use, or a .gguf file.", "--model", "-m", panel=MODEL, metavar="NAME|FILE")
    ] = "smollm2"
    speculation: Annotated[
        str,
        flag(
            "Who drafts: whoever pays, nobody, a drafter by name, or a fixed number of tokens, also NAME:N. "
            "The text does not depend on it.",
            panel=MODEL,
            metavar="auto|off|NAME|N",
        ),
    ] = "auto"
    draft: Annotated[
        str | None,
        flag(
            "What drafts as well: a smaller model with the same vocabulary, or an EAGLE-3 head.",
            panel=MODEL,
            metavar="NAME|FILE|FOLDER",
        ),
    ] = None
    learn_from_outputs: Annotated[
        bool, flag("Draft from earlier answers too, whoever asked for them.", "--learn-from-outputs", panel=MODEL)
    ] = False
    context_length: Annotated[
        int | None, flag("Most tokens of prompt and answer together. Default: the model's own.", panel=MODEL)
    ] = None
    threads: Annotated[int | None, flag("Default: all processors that this process may use.", panel=MODEL)] = None
    recalibrate: Annotated[
        bool, flag("Measure again what drafts cost on this machine; else it is done once.", "--recalibrate",
                   panel=MODEL)
    ] = False  # fmt: skip

    def load(self, max_batch: int = 8) -> LLM:
        """The model; a download shows its progress on stderr. Raises what `LLM` raises."""
        from outrider.llm import LLM

        with display.Download() as progress:
            return LLM(
                self.model,
                speculation=self.speculation,
                draft=self.draft,
                learn_from_outputs=self.learn_from_outputs,
                context_length=self.context_length,
                max_batch=max_batch,
                threads=self.threads,
                recalibrate=self.recalibrate,
                progress=progress,
            )


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How tokens are chosen, and when a text ends; see `outrider.SamplingParams`."""

    max_tokens: Annotated[int, flag("Most tokens of an answer.", "--max-tokens", "-n", panel=SAMPLING)] = 512
    temperature: Annotated[
        float, flag("0: always the most probable token; 1: as probable as the model says.", "--temperature", "-t",
                    panel=SAMPLING)
    ] = 0.0  # fmt: skip
    top_k: Annotated[int, flag("Only the k most probable tokens; 0: all.", panel=SAMPLING)] = 0
    top_p: Annotated[float, flag("Then the fewest whose probabilities reach p; 1: all.", panel=SAMPLING)] = 1.0
    min_p: Annotated[float, flag("Then those at least this times as probable as the best; 0: all.", panel=SAMPLING)] = (
        0.0
    )
    logit_bias: Annotated[
        list[str] | None,
        flag("Add this to the token's logit, from -100 to 100. May be repeated.", panel=SAMPLING, metavar="ID=VALUE"),
    ] = None
    allowed_token_id: Annotated[
        list[int] | None, flag("Only this token can come. May be repeated.", panel=SAMPLING, metavar="ID")
    ] = None
    banned_token_id: Annotated[
        list[int] | None, flag("This token cannot come. May be repeated.", panel=SAMPLING, metavar="ID")
    ] = None
    min_tokens: Annotated[int, flag("No token ends the answer before it has so many.", panel=SAMPLING)] = 0
    repetition_penalty: Annotated[
        float, flag("Weaken what is in prompt or answer; below 1: strengthen.", panel=SAMPLING)
    ] = 1.0
    presence_penalty: Annotated[float, flag("Taken off the logits of tokens in the answer.", panel=SAMPLING)] = 0.0
    frequency_penalty: Annotated[float, flag("Taken off as often as the token is in the answer.", panel=SAMPLING)] = 0.0
    seed: Annotated[
        int | None, flag("The same seed gives the same text, with or without speculation.", panel=SAMPLING)
    ] = None
    acceptance: Annotated[
        str | None,
        flag("Acceptance rule when sampling. Default: coupled with a seed, block without.", panel=SAMPLING,
             metavar="coupled|rejection|block"),
    ] = None  # fmt: skip
    stop: Annotated[
        list[str] | None, flag("End the answer before this text. May be repeated.", panel=SAMPLING, metavar="TEXT")
    ] = None
    stop_token_id: Annotated[
        list[int] | None, flag("End the answer at this token. May be repeated.", panel=SAMPLING, metavar="ID")
    ] = None
    ignore_eos: Annotated[
        bool, flag("Write on past the model's end-of-text tokens.", "--ignore-eos", panel=SAMPLING)
    ] = False

    def params(self, logprobs: int | None = None) -> SamplingParams:
        """The same, checked. Raises RequestError for an impossible value."""
        from outrider.sampling import SamplingParams

        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            max_tokens=self.max_tokens,
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_id or ()),
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            acceptance=self.acceptance,  # type: ignore[arg-type]  # it checks
            logit_bias=dict(map(_bias, self.logit_bias or ())),
            allowed_token_ids=tuple(self.allowed_token_id) if self.allowed_token_id else None,
            banned_token_ids=tuple(self.banned_token_id or ()),
            min_tokens=self.min_tokens,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
        )


def _bias(text: str) -> tuple[int, float]:
    """Reads ID=VALUE. Raises RequestError."""
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise RequestError(f"logit_bias={text!r} is not possible; allowed: ID=VALUE, such as 42=-1.5") from None


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its dataclass parameters taken apart into their fields, for typer to see."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if name in groups:
            types = get_type_hints(groups[name], include_extras=True)
            parameters += [
                p.replace(kind=Parameter.KEYWORD_ONLY, annotation=types[p.name])
                for p in signature(groups[name]).parameters.values()
            ]
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    @wraps(command)
    def flat(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    flat.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat
