"""What a draft gains on this machine: held-out questions answered plainly and with drafts, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.distill.evaluate import DRAFTED, Acceptance
from outrider.llm import LLM, Completion, completion
from outrider.sampling import SamplingParams

TOKENS = 64
"""Of an answer."""
CONTEXT = 128
"""Tokens before a pass, for the prediction."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Speeds are times that of plain decoding of the same texts, prompts left out.

    texts            how many were decoded each way, greedily.
    c                time of a drafted token, in passes of the target over one row, as the policy reckons it.
    v                time of a pass over DRAFTED + 1 rows, likewise.
    predicted        tokens per step / (k c + v(k + 1)) for k = DRAFTED (Leviathan et al. 2023, theorem 3.8, with v).
    measured         speed by what drafted: the draft alone, always DRAFTED tokens; suffix alone; and whichever pays.
    tokens_per_step  likewise.
    """

    texts: int
    c: float
    v: float
    predicted: float
    measured: dict[str, float]
    tokens_per_step: dict[str, float]


def measure(target: Path, draft: Path, kind: str, prompts: Sequence[Sequence[int]], acceptance: Acceptance) -> Speed:
    """Answer the prompts, given as token ids. draft: its file or folder; kind: the name of its drafter."""
    llm = LLM(target, draft=draft, context_length=max(map(len, prompts)) + TOKENS + 1)
    ways = ("off", f"{kind}:{DRAFTED}", "suffix", "auto")
    params = SamplingParams(max_tokens=TOKENS)
    answers: dict[str, list[Completion]] = {way: [] for way in ways}
    for prompt in prompts:
        for way in ways:
            request = llm.request(list(prompt), params, speculation=way, reuse=False)
            for _ in llm.run([request]):
                pass
            answers[way].append(completion(request))
    plain = sum(map(_decoding, answers["off"]))
    c, v = llm.policy.price(kind), llm.costs.v(DRAFTED + 1, CONTEXT)
    return Speed(
        texts=len(prompts),
        c=c,
        v=v,
        predicted=acceptance.tokens_per_step / (DRAFTED * c + v),
        measured={way: plain / max(sum(map(_decoding, answers[way])), 1e-9) for way in ways[1:]},
        tokens_per_step={
            way: sum(answer.completion_tokens for answer in answers[way])
            / max(sum(answer.steps for answer in answers[way]), 1)
            for way in ways[1:]
        },
    )


def _decoding(answer: Completion) -> float:
    """Seconds after the first step."""
    return answer.duration - answer.time_to_first_token
