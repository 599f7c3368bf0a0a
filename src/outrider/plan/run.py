"""Writes answers to prompts with every drafter, then with the best one, without any, and as the policy likes; timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider import machine
from outrider.errors import RequestError
from outrider.llm import LLM, Prompt
from outrider.plan.bench import ROUNDS, Bench, Progress, Way
from outrider.plan.forecast import Forecast
from outrider.policy.costs import Costs
from outrider.sampling import SamplingParams

PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Write a Python function that returns the n-th Fibonacci number, and explain it.",
    "Translate into German: The train leaves at nine, and we shall be late unless we hurry.",
    "Summarise in one sentence: The committee met on Monday to discuss the budget. The budget had grown by a tenth "
    "since last year, and the committee asked for an explanation. The treasurer explained that prices had risen.",
    "Correct the spelling: I beleive that teh committe recieved the letter on wensday.",
    "A farmer has 17 sheep. All but 9 run away. How many are left? Think step by step.",
    "Give me a shopping list for a dinner of four, with quantities.",
    "Write a short polite letter that cancels a magazine subscription.",
)
"""Of several kinds, for those who bring none."""

MOST_PROMPTS = 24
_ON_REQUEST = {"prediction", "grammar"}  # a prompt alone does not make them speak
GREEDY = SamplingParams(max_tokens=64)


@dataclass(frozen=True, slots=True)
class Plan:
    """The figures of a plan.

    prompts    how many were used, of how many.
    context    tokens before a step, on average.
    costs      of passes, in the same minutes as all else: a machine with busy neighbours changes from one to the next.
    forecasts  of all drafters, the best one first.
    plain, fixed, auto  measured: plain decoding; the drafter and length that promised most, if any; the policy's own
                        choice.
    """

    model: str
    processor: str
    threads: int
    kernels: str
    prompts: tuple[int, int]
    tokens: int
    context: int
    costs: Costs
    forecasts: tuple[Forecast, ...]
    plain: Way
    fixed: Way | None
    auto: Way

    @property
    def reason(self) -> str:
        """The plan in one sentence."""
        best = self.forecasts[0]
        return f"{best.drafter}: {best.reason(self.costs)}"


def plan(
    llm: LLM,
    prompts: Sequence[Prompt] = PROMPTS,
    params: SamplingParams = GREEDY,
    *,
    most: int = 8,
    costs: Costs | None = None,
    progress: Progress = lambda doing, done, total: None,
) -> Plan:
    """Predict and measure what speculation brings for these prompts, one at a time.

    most   the greatest length that is looked at; the LLM must allow it (its max_draft).
    costs  of passes; None: they are measured again, before each round and after the last.

    At most MOST_PROMPTS are used, taken evenly. Raises RequestError if there is none, or one is impossible, and
    OutriderError if a text fails.
    """
    if not prompts:
        raise RequestError("prompts: there are none; expected at least one")
    count = min(len(prompts), MOST_PROMPTS)
    used = [llm.encode(prompts[i * len(prompts) // count]) for i in range(count)]
    names = [name for name in llm.drafters if name not in _ON_REQUEST]
    bench = Bench(llm, used, params, progress, costs, rounds=1 + len(names) + 3 * ROUNDS)
    bench.warm_up()
    bench.write()
    drafted = {name: bench.draft(name, most) for name in names}

    def predict() -> list[Forecast]:
        forecasts = [
            Forecast.make(name, llm.policy.price(name), bench.context, lengths, bench.costs, beside)
            for name, (lengths, beside) in drafted.items()
        ]
        return sorted(forecasts, key=lambda forecast: -forecast.speed_up)

    chosen = predict()[0]
    ways = {"plain": "off", "auto": "auto"}
    if chosen.best:
        ways["fixed"] = f"{chosen.drafter}:{chosen.best}"
    measured = bench.measure(ways)
    forecasts = predict()
    predicted = {forecast.drafter: forecast.speed_ups for forecast in forecasts}
    if chosen.best:
        measured["fixed"] = replace(measured["fixed"], predicted=predicted[chosen.drafter][chosen.best])
    return Plan(
        model=llm.name,
        processor=machine.processor(),
        threads=llm.model.threads,
        kernels=llm.model.kernels,
        prompts=(count, len(prompts)),
        tokens=bench.tokens,
        context=bench.context,
        costs=bench.costs,
        forecasts=tuple(forecasts),
        plain=measured["plain"],
        fixed=measured.get("fixed"),
        auto=measured["auto"],
    )
