"""`outrider generate --prompts`: the answers to many prompts, as JSON lines in the order of the prompts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.cli import display
from outrider.cli.interrupt import cancelling
from outrider.cli.prompts import Entry
from outrider.cli.records import exit_code, record
from outrider.errors import OutriderError
from outrider.llm import LLM, Completion, completion
from outrider.request import Request

if TYPE_CHECKING:
    from outrider.sampling import SamplingParams


def answer_all(llm: LLM, entries: Sequence[Entry], params: SamplingParams, output: Path | None) -> int:
    """Answer all prompts in one batch; each answer is written once it and those before it are finished.

    A prompt that is impossible or fails gets its error as its answer, and holds nobody else up. After an interrupt,
    texts that were begun are written as far as they came. Returns the exit code.
    """
    done: dict[int, Completion] = {}
    requests: dict[Request, int] = {}
    for index, entry in enumerate(entries):
        try:
            requests[llm.request(entry.prompt, params)] = index
        except OutriderError as error:
            done[index] = _failed(error)

    written = tokens = 0
    start = time.perf_counter()
    with display.Batch(len(entries), output) as screen:

        def write_finished() -> None:
            nonlocal written
            while (answer := done.get(written)) is not None:
                if answer.finish_reason != "cancelled" or answer.token_ids:
                    screen.write(record(llm.name, answer, {"index": written, **entries[written].fields}))
                written += 1

        write_finished()
        with cancelling(llm, list(requests)):
            for emitted in llm.run(list(requests)):
                tokens += len(emitted.token_ids)
                if emitted.finish_reason is not None:
                    done[requests[emitted.request]] = completion(emitted.request)
                    write_finished()
                screen.update(len(done), tokens / (time.perf_counter() - start))
    seconds = time.perf_counter() - start
    display.note(_summary(list(done.values()), seconds))
    return exit_code(done.values())


def _failed(error: OutriderError) -> Completion:
    """What stands for a prompt that could not even be submitted."""
    return Completion("", (), "error", 0, (), (), 0, 0, 0, 0.0, 0.0, error)


def _summary(completions: Sequence[Completion], seconds: float) -> str:
    tokens = sum(each.completion_tokens for each in completions)
    steps = sum(each.steps for each in completions)
    drafted = sum(each.drafted for each in completions)
    accepted = sum(each.accepted for each in completions)
    count = len(completions)
    parts = [f"{count} prompt{'s' if count != 1 else ''}", f"{tokens} tokens in {seconds:.1f} s"]
    parts += [f"{tokens / seconds:.1f} tokens/s", f"{tokens / max(steps, 1):.2f} tokens per step"]
    if drafted:
        parts.append(f"{accepted / drafted:.0%} of {drafted} drafts accepted")
    for reason, word in (("error", "failed"), ("cancelled", "interrupted")):
        if number := sum(each.finish_reason == reason for each in completions):
            parts.append(f"{number} {word}")
    return ", ".join(parts)
