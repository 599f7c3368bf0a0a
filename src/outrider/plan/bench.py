"""Writes texts step by step, for a plan: counts what becomes of drafts, and times steps, passes and whole texts."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider import drafters
from outrider.cache import KVCache
from outrider.errors import OutriderError
from outrider.llm import LLM
from outrider.models.base import CausalLM
from outrider.plan.forecast import Beside, Steps
from outrider.plan.replay import replay
from outrider.policy.costs import Costs
from outrider.policy.measure import measure
from outrider.sampling import SamplingParams
from outrider.types import Output, Rows

ROUNDS = 3
_WARM_UP = SamplingParams(max_tokens=8)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Way:
    """A way of decoding. speed_up: over plain decoding, the median of all rounds; predicted: what was expected."""

    speculation: str
    tokens_per_second: float
    tokens_per_step: float
    speed_up: float
    predicted: float | None = None


class _Clocked:
    """A target, and the seconds that its passes took since `inside` was last set to 0."""

    def __init__(self, target: CausalLM) -> None:
        self._target = target
        self.vocabulary_size, self.context_length, self.kv_shape = (
            target.vocabulary_size,
            target.context_length,
            target.kv_shape,
        )
        self.inside = 0.0

    def forward(self, rows: Rows, cache: KVCache) -> Output:
        start = time.perf_counter()
        output = self._target.forward(rows, cache)
        self.inside += time.perf_counter() - start
        return output


class Bench:
    """Writes texts, and counts and times their steps.

    tokens   of all texts.
    context  before a step, on average.
    """

    def __init__(
        self,
        llm: LLM,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        progress: Progress,
        costs: Costs | None,
        rounds: int,
    ) -> None:
        self._llm = llm
        self._prompts = prompts
        self._params = params
        self._progress = progress
        self._total = rounds * len(prompts)
        self._done = 0
        self._given = costs
        self._measured = [] if costs else [measure(llm.model)]
        self._texts: list[tuple[list[int], list[int]]] = []
        self._plain = 0.0  # seconds beside passes
        self.tokens = 0
        self.context = 0

    @property
    def costs(self) -> Costs:
        """As they were given, or have been so far."""
        return self._given or Costs.mean(self._measured)

    def warm_up(self) -> None:
        """The first passes take longer."""
        for speculation in ("off", "auto"):
            request = self._llm.request(self._prompts[0], _WARM_UP, speculation=speculation)
            for _ in self._llm.run([request]):
                pass

    def write(self) -> None:
        """The texts, by plain decoding."""
        _, silent, _ = self._steps("off", "Writing")
        self._plain = statistics.median(silent) if silent else 0.0
        self.tokens = sum(len(output) for _, output in self._texts)
        self.context = sum(len(p) + len(output) // 2 for p, output in self._texts) // len(self._texts)

    def draft(self, drafter: str, most: int) -> tuple[list[Steps], Beside]:
        """What becomes of the drafter's tokens at lengths 1 to `most`, and what its steps take beside passes."""
        outcomes, silent, drafted = self._steps(f"{drafter}:{most}", f"Drafting with {drafter}")
        plain, price = self.costs.plain(self.context), self._llm.policy.price(drafter)
        rest = [seconds - plain * price * tokens for tokens, seconds in drafted]
        beside = Beside(
            self._plain,
            statistics.median(silent) if silent else self._plain,
            statistics.median(rest) if rest else self._plain,
        )
        if price or drafter not in drafters.available():
            return Steps(most, dict(outcomes)).lengths(), beside
        fresh, params = self._llm.fresh_drafter, self._params
        return [replay(fresh(drafter), self._texts, k, params) for k in range(1, most + 1)], beside

    def _steps(
        self, speculation: str, doing: str
    ) -> tuple[Counter[tuple[int, int]], list[float], list[tuple[int, float]]]:
        """Write all texts: how many steps drafted and accepted how much; the seconds beside passes of each that drafted
        nothing, and of each that did, with how much."""
        outcomes: Counter[tuple[int, int]] = Counter()
        silent: list[float] = []
        drafted: list[tuple[int, float]] = []
        texts = []
        engine = self._llm.engine
        engine.target = clocked = _Clocked(self._llm.model)
        try:
            for prompt in self._prompts:
                self._tell(doing)
                request = self._llm.request(prompt, self._params, speculation=speculation)
                last = 0.0
                for emitted in self._llm.run([request]):
                    now = time.perf_counter()
                    if last and emitted.token_ids:
                        drafting, seconds = emitted.drafting, now - last - clocked.inside
                        outcomes[drafting.drafted, drafting.accepted] += 1
                        if drafting.drafted:
                            drafted.append((drafting.drafted, seconds))
                        else:
                            silent.append(seconds)
                    clocked.inside = 0.0
                    last = time.perf_counter()
                if request.error is not None:
                    raise OutriderError(str(request.error)) from request.error
                texts.append((prompt, request.output))
        finally:
            engine.target = self._llm.model
        self._texts = self._texts or texts
        return outcomes, silent, drafted

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
            if not self._given:
                self._measured.append(measure(self._llm.model))
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
