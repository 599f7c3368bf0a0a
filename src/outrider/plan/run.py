"""Writes answers to prompts with every drafter, then with the best one, without any, and as the policy likes; timed."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider import machine
from outrider.errors import OutriderError, RequestError
from outrider.llm import LLM, Prompt
from outrider.plan.forecast import Forecast, Steps
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
ROUNDS = 3
_ON_REQUEST = {"prediction", "grammar"}  # a prompt alone does not make them speak
GREEDY = SamplingParams(max_tokens=64)
_WARM_UP = SamplingParams(max_tokens=8)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Way:
    """A way of decoding. speed_up: measured, over plain decoding, the median of all rounds; tokens_per_step."""

    speculation: str
    tokens_per_second: float
    tokens_per_step: float
    speed_up: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The figures of a plan.

    prompts    how many were used, of how many.
    context    tokens before a step, on average.
    forecasts  of all drafters, the best one first.
    plain, fixed, auto  measured: plain decoding; the best drafter at its best length, if any; the policy's own choice.
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
    progress: Progress = lambda doing, done, total: None,
) -> Plan:
    """Predict and measure what speculation brings for these prompts, one at a time.

    most  the greatest length that is looked at.

    At most MOST_PROMPTS are used, taken evenly. Raises RequestError if there is none, or one is impossible, and
    OutriderError if a text fails.
    """
    if not prompts:
        raise RequestError("prompts: there are none; expected at least one")
    count = min(len(prompts), MOST_PROMPTS)
    used = [llm.encode(prompts[i * len(prompts) // count]) for i in range(count)]
    names = [name for name in llm.drafters if name not in _ON_REQUEST]
    bench = _Bench(llm, used, params, progress, rounds=len(names) + 3 * ROUNDS)
    bench.warm_up()

    forecasts = []
    for name in names:
        steps = bench.steps(name, most)
        c = llm.policy.price(name)
        forecasts.append(Forecast.make(name, c, bench.context, steps, llm.costs))
    forecasts.sort(key=lambda forecast: -forecast.speed_up)
    best = forecasts[0]
    ways = {"plain": "off", "auto": "auto"}
    if best.best:
        ways["fixed"] = f"{best.drafter}:{best.best}"
    measured = bench.measure(ways)
    return Plan(
        model=llm.name,
        processor=machine.processor(),
        threads=llm.model.threads,
        kernels=llm.model.kernels,
        prompts=(count, len(prompts)),
        tokens=bench.tokens,
        context=bench.context,
        costs=llm.costs,
        forecasts=tuple(forecasts),
        plain=measured["plain"],
        fixed=measured.get("fixed"),
        auto=measured["auto"],
    )


class _Bench:
    """Writes texts, and counts and times their steps.

    tokens   of all texts.
    context  before a step, on average.
    """

    def __init__(
        self, llm: LLM, prompts: Sequence[list[int]], params: SamplingParams, progress: Progress, rounds: int
    ) -> None:
        self._llm = llm
        self._prompts = prompts
        self._params = params
        self._progress = progress
        self._total = rounds * len(prompts)
        self._done = 0
        self.tokens = 0
        self.context = 0

    def warm_up(self) -> None:
        """The first passes take longer."""
        for speculation in ("off", "auto"):
            request = self._llm.request(self._prompts[0], _WARM_UP, speculation=speculation)
            for _ in self._llm.run([request]):
                pass

    def steps(self, drafter: str, most: int) -> Steps:
        """What becomes of the drafter's tokens when it is always asked for that many."""
        outcomes: Counter[tuple[int, int]] = Counter()
        tokens = contexts = 0
        for prompt in self._prompts:
            self._tell(f"Drafting with {drafter}")
            request = self._llm.request(prompt, self._params, speculation=f"{drafter}:{most}")
            for emitted in self._llm.run([request]):
                drafting = emitted.drafting
                if drafting.allowed:
                    outcomes[drafting.drafted, drafting.accepted] += 1
            if request.error is not None:
                raise OutriderError(str(request.error)) from request.error
            tokens += request.completion_tokens
            contexts += len(prompt) + request.completion_tokens // 2
        self.tokens, self.context = tokens, contexts // len(self._prompts)
        return Steps(most, dict(outcomes))

    def measure(self, ways: dict[str, str]) -> dict[str, Way]:
        """All ways in turn, round after round; speed is that after the first step."""
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        steps: Counter[str] = Counter()
        tokens: Counter[str] = Counter()
        for _ in range(ROUNDS):
            for name in ways:
                seconds[name].append(0.0)
            for prompt in self._prompts:
                for name, speculation in ways.items():
                    self._tell("Timing")
                    spent, written, taken = self._time(prompt, speculation)
                    seconds[name][-1] += spent
                    tokens[name] += written
                    steps[name] += taken
        found = {}
        for name, speculation in ways.items():
            ratios = [plain / mine for plain, mine in zip(seconds["plain"], seconds[name], strict=True) if mine]
            found[name] = Way(
                speculation,
                tokens_per_second=tokens[name] / max(sum(seconds[name]), 1e-9),
                tokens_per_step=tokens[name] / max(steps[name], 1),
                speed_up=statistics.median(ratios) if ratios else 1.0,
            )
        return found

    def _time(self, prompt: list[int], speculation: str) -> tuple[float, int, int]:
        """Seconds, tokens and steps after the first step of one text."""
        request = self._llm.request(prompt, self._params, speculation=speculation)
        first = last = 0.0
        for _ in self._llm.run([request]):
            last = time.perf_counter()
            first = first or last
        return last - first, request.completion_tokens - 1, request.stats.steps - 1

    def _tell(self, doing: str) -> None:
        self._progress(doing, self._done, self._total)
        self._done += 1
