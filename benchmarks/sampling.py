"""What sampling adds to a step of eight requests that decode plainly, for each rule, on the ordinary engine.

    python benchmarks/sampling.py                # about a minute

The rules take turns, round by round, in one run; caches are as cold as a forward pass leaves them. Run it on an idle
machine.
"""

from __future__ import annotations

import argparse
import statistics
import time

import common
import numpy as np

from outrider import LLM, SamplingParams
from outrider.request import Request

REQUESTS, STEPS = 8, 40
RULES = {
    "greedy": {},
    "temperature": {"temperature": 1.0},
    "top-k 40": {"temperature": 1.0, "top_k": 40},
    "top-p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "min-p 0.05": {"temperature": 1.0, "min_p": 0.05},
    "coupled": {"temperature": 1.0, "seed": 1},
    "coupled, top-p 0.9": {"temperature": 1.0, "top_p": 0.9, "seed": 1},
}


def microseconds(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> tuple[float, float]:
    """Median time per step of verification, all requests together, and of the forward pass."""
    requests = [Request(prompt, params) for prompt in prompts]
    verifying, passes = [0.0], [0.0]
    for request in requests:
        llm.engine.submit(request)
        request.verify = _timed(request.verify, verifying)
    llm.model.forward = _timed(llm.model.forward, passes)  # type: ignore[method-assign]
    while any(request.completion_tokens < 2 for request in requests):
        llm.engine.step()
    rows = []
    for _ in range(STEPS):
        verifying[0] = passes[0] = 0.0
        llm.engine.step()
        rows.append((verifying[0] * 1e6, passes[0] * 1e6))
    del llm.model.forward
    for request in requests:
        llm.engine.cancel(request)
    llm.engine.drop_cancelled()
    return statistics.median(row[0] for row in rows), statistics.median(row[1] for row in rows)


def _timed(function, total):  # type: ignore[no-untyped-def]
    def timed(*arguments):  # type: ignore[no-untyped-def]
        start = time.perf_counter()
        result = function(*arguments)
        total[0] += time.perf_counter() - start
        return result

    return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="alias or path of a .gguf file (default: smollm2)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    llm = LLM(options.model, speculation="off", threads=options.threads, context_length=512)
    rng = np.random.default_rng(0)
    prompts = [[int(token) for token in rng.integers(100, 40000, 64)] for _ in range(REQUESTS)]
    passes: dict[str, list[float]] = {name: [] for name in RULES}

    def measure(name: str) -> float:
        verifying, forward = microseconds(llm, prompts, SamplingParams(ignore_eos=True, **RULES[name]))
        passes[name].append(forward)
        return verifying

    figures = common.interleave({name: lambda name=name: measure(name) for name in RULES}, options.rounds)
    common.console.print(common.describe_machine("outrider", "numpy") + "\n")
    rows = [
        [name, common.spread(values, 0), f"{common.median_ratio(values, passes[name][1:]):.1%}"]
        for name, values in figures.items()
    ]
    title = f"{REQUESTS} requests, one row each, a vocabulary of {llm.model.vocabulary_size}"
    common.table(title, ["rule", "sampling, µs a step", "of the pass"], rows)


if __name__ == "__main__":
    main()
