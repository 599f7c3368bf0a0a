"""Completions as JSON, one object on a line each, and as an exit code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider.llm import Completion


def record(model: str, completion: Completion, extra: Mapping[str, object] | None = None) -> str:
    """The JSON object of one completion. Seconds; tokens_per_second is the speed after the first step.

    logprobs are there if they were asked for, error if it failed; `extra` comes first.
    """
    fields: dict[str, object] = {
        **(extra or {}),
        "model": model,
        "drafter": drafter(completion),
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.completion_tokens,
        "time_to_first_token": round(completion.time_to_first_token, 4),
        "tokens_per_second": round(completion.tokens_per_second, 2),
        "steps": completion.steps,
        "drafted": completion.drafted,
        "accepted": completion.accepted,
        "tokens_per_step": round(completion.tokens_per_step, 4),
        "acceptance_rate": round(completion.acceptance_rate, 4),
    }
    if completion.logprobs:
        fields["logprobs"] = [
            {
                "token_id": token,
                "logprob": entry.chosen,
                "top": [{"token_id": other, "logprob": value} for other, value in entry.top],
            }
            for token, entry in zip(completion.token_ids, completion.logprobs, strict=True)
        ]
    if completion.error is not None:
        fields["error"] = str(completion.error)
    return dumps(fields)


def drafter(completion: Completion) -> str | None:
    """Whose drafts the target checked, such as "prediction+suffix"; None if there were none."""
    return "+".join(completion.drafters) or None


def dumps(fields: Mapping[str, object]) -> str:
    """JSON on one line, non-ASCII letters as they are."""
    return json.dumps(fields, ensure_ascii=False)


def exit_code(completions: Iterable[Completion]) -> int:
    """130 if one was interrupted, 1 if one failed, else 0."""
    reasons = {completion.finish_reason for completion in completions}
    return 130 if "cancelled" in reasons else 1 if "error" in reasons else 0
