"""What a draft gains on this machine: held-out questions answered plainly and with drafts, in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outrider.distill.acceptance import DRAFTED, Acceptance
from outrider.llm import LLM, Completion, completion
from outrider.sampling import SamplingParams

TEXTS = 8
"""Questions that are asked, if so many are held out."""
TOKENS = 64
"""Of an answer."""
CONTEXT = 128
"""Tokens before a pass, for the prediction."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What theory says of a draft.

    c          time of a drafted token, in passes of the target over one row, as the policy reckons it.
    v          time of a pass over DRAFTED + 1 rows, likewise.
    predicted  tokens per step / (k c + v(k + 1)) for k = DRAFTED (Leviathan et al. 2023, theorem 3.8, with v).
    """

    c: float
    v: float
    predicted: float


@dataclass(frozen=True, slots=True)
class Speed:
    """Speeds are times that of plain decoding of the same texts, prompts left out.

    texts            how many were decoded each way, greedily.
    measured         speed by what drafted.
    tokens_per_step  likewise.
    prediction       None for what is not drafted by weights.
    """

    texts: int
    measured: dict[str, float]
    tokens_per_step: dict[str, float]
    prediction: Prediction | None = None


def of_draft(target: Path, draft: Path, kind: str, prompts: Sequence[Sequence[int]], acceptance: Acceptance) -> Speed:
    """What a draft gains: alone, always DRAFTED tokens; suffix alone; and whichever pays.

    draft    its folder; kind: the name of its drafter.
    prompts  to answer, as token ids.
    """
    llm = _llm(target, draft, prompts)
    c, v = llm.policy.price(kind), llm.costs.v(DRAFTED + 1, CONTEXT)
    prediction = Prediction(c, v, acceptance.tokens_per_step / (DRAFTED * c + v))
    ways = {way: (llm, way) for way in (f"{kind}:{DRAFTED}", "suffix", "auto")}
    return replace(_compare((llm, "off"), ways, prompts), prediction=prediction)


def of_followers(target: Path, folder: Path, prompts: Sequence[Sequence[int]]) -> Speed:
    """What a table of followers gains: suffix with what ships for the target, or nothing; with the table; what pays."""
    before, llm = _llm(target, None, prompts), _llm(target, folder, prompts)
    ways = {"suffix, as before": (before, "suffix"), "suffix": (llm, "suffix"), "auto": (llm, "auto")}
    return _compare((llm, "off"), ways, prompts)


def _llm(target: Path, draft: Path | None, prompts: Sequence[Sequence[int]]) -> LLM:
    return LLM(target, draft=draft, context_length=max(map(len, prompts)) + TOKENS + 1)


def _compare(plain: tuple[LLM, str], ways: Mapping[str, tuple[LLM, str]], prompts: Sequence[Sequence[int]]) -> Speed:
    """Answer each prompt plainly, and then in each way, an LLM and what it is told of speculation."""
    params = SamplingParams(max_tokens=TOKENS)
    answers: dict[str, list[Completion]] = {way: [] for way in ("plain", *ways)}
    for prompt in prompts:
        for way, (llm, speculation) in {"plain": plain, **ways}.items():
            request = llm.request(list(prompt), params, speculation=speculation, reuse=False)
            for _ in llm.run([request]):
                pass
            answers[way].append(completion(request))
    seconds = sum(map(_decoding, answers["plain"]))
    return Speed(
        texts=len(prompts),
        measured={way: seconds / max(sum(map(_decoding, answers[way])), 1e-9) for way in ways},
        tokens_per_step={
            way: sum(answer.completion_tokens for answer in answers[way])
            / max(sum(answer.steps for answer in answers[way]), 1)
            for way in ways
        },
    )


def _decoding(answer: Completion) -> float:
    """Seconds after the first step."""
    return answer.duration - answer.time_to_first_token
