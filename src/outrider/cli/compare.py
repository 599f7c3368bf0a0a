"""`outrider generate --compare`: the same text plain and speculative, on one engine: both speeds, and proof that it is
the same.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from statistics import median

from outrider.cli import display
from outrider.cli.records import drafter, dumps
from outrider.errors import OutriderError
from outrider.llm import LLM, Completion, Prompt, completion
from outrider.sampling import SamplingParams

ROUNDS = 3
WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Comparison:
    """The completions of both ways, one per round, in order of time: plain, speculative, plain, speculative, ..."""

    plain: tuple[Completion, ...]
    speculative: tuple[Completion, ...]

    @property
    def speeds(self) -> tuple[float, float]:
        """Median tokens/s of both ways."""
        plain, speculative = (median(each.tokens_per_second for each in way) for way in (self.plain, self.speculative))
        return plain, speculative

    @property
    def ratio(self) -> float | None:
        """How many times as fast speculation is; None where the text is too short to tell."""
        plain, speculative = self.speeds
        return speculative / plain if plain and speculative else None

    @property
    def difference(self) -> int | None:
        """Index of the first token in which any text differs from the first plain one; None: all are identical."""
        first = self.plain[0].token_ids
        places = []
        for other in (*self.plain, *self.speculative):
            if other.token_ids != first or other.text != self.plain[0].text:
                pairs = enumerate(zip(first, other.token_ids, strict=False))
                shorter = min(len(first), len(other.token_ids))
                places.append(next((i for i, (mine, theirs) in pairs if mine != theirs), shorter))
        return min(places, default=None)


def compare_speeds(llm: LLM, prompt: Prompt, params: SamplingParams, prediction: str, *, json: bool) -> int:
    """Print a comparison; returns the exit code: 0 if the texts are identical, else 1."""
    if params.temperature > 0 and params.seed is None:
        params = replace(params, seed=secrets.randbits(32))
        display.note(f"no --seed was given: both ways draw with seed {params.seed}")
    comparison = measure(llm, prompt, params, prediction)
    print(_as_json(comparison, llm.name, params.seed) if json else _as_text(comparison), flush=True)
    return 0 if comparison.difference is None else 1


def measure(llm: LLM, prompt: Prompt, params: SamplingParams, prediction: str) -> Comparison:
    """Run both ways in turn, after a short warm-up of both. Raises OutriderError if one of the texts failed."""

    def run(speculation: str | None, params: SamplingParams) -> Completion:
        request = llm.request(prompt, params, prediction=prediction, speculation=speculation)
        for _ in llm.run([request]):
            pass
        done = completion(request)
        if done.error:
            raise OutriderError(str(done.error)) from done.error
        return done

    warm_up = replace(params, max_tokens=min(WARM_UP_TOKENS, params.max_tokens or WARM_UP_TOKENS))
    plain, speculative = [], []
    with display.rounds() as bar:
        run("off", warm_up)
        run(None, warm_up)
        for _ in bar.track(range(ROUNDS), description="Rounds"):
            plain.append(run("off", params))
            speculative.append(run(None, params))
    return Comparison(tuple(plain), tuple(speculative))


def _as_text(comparison: Comparison) -> str:
    plain, speculative = comparison.speeds
    sample = comparison.speculative[-1]
    ratio, difference = comparison.ratio, comparison.difference
    accepted = display.acceptance(sample) if sample.drafted else "nothing drafted"
    speed = f"{ratio:.2f}x, medians of {ROUNDS} runs each" if ratio else "the text is too short to tell"
    if difference is None:
        verdict = f"identical, {sample.completion_tokens} tokens"
    else:
        verdict = f"DIFFERENT from token {difference} on"
    return (
        f"plain        {plain:8.1f} tokens/s\n"
        f"speculative  {speculative:8.1f} tokens/s   {sample.tokens_per_step:.2f} tokens per step, {accepted}\n"
        f"speed-up     {speed}\n"
        f"texts        {verdict}"
    )


def _as_json(comparison: Comparison, model: str, seed: int | None) -> str:
    sample = comparison.speculative[-1]
    plain, speculative = comparison.speeds
    return dumps(
        {
            "model": model,
            "drafter": drafter(sample),
            "text": comparison.plain[0].text,
            "identical": comparison.difference is None,
            "first_difference": comparison.difference,
            "seed": seed,
            "prompt_tokens": sample.prompt_tokens,
            "completion_tokens": sample.completion_tokens,
            "rounds": ROUNDS,
            "plain_tokens_per_second": round(plain, 2),
            "speculative_tokens_per_second": round(speculative, 2),
            "ratio": comparison.ratio and round(comparison.ratio, 4),
            "drafted": sample.drafted,
            "accepted": sample.accepted,
            "tokens_per_step": round(sample.tokens_per_step, 4),
            "acceptance_rate": round(sample.acceptance_rate, 4),
        }
    )
