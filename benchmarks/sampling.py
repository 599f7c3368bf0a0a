"""What sampling adds to a step of eight requests that decode plainly, for each rule, on the ordinary engine.

    python benchmarks/sampling.py                # about a minute

Each rule samples eight rows a step, in two kinds of texts: what it writes itself after random prompts, where laws are
at their flattest, and the greedy answers to questions. The rules take turns, round by round, in one run; caches are as
cold as a forward pass leaves them. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import time

import common
import numpy as np

from outrider import LLM, SamplingParams
from outrider.request import Request
from outrider.types import Outcome

REQUESTS, STEPS = 8, 40
QUESTIONS = (
    "What is the capital of France, and why is it famous?",
    "Write a short story about a dog that finds a key.",
    "Explain how plants make sugar from light.",
    "Give me three tips for sleeping better.",
    "What is the difference between a virus and a bacterium?",
    "Write a Python function that reverses a string.",
    "Summarise the causes of the First World War.",
    "Translate to German: The train is late again.",
)
RULES = {
    "greedy": {},
    "temperature": {"temperature": 1.0},
    "top-k 40": {"temperature": 1.0, "top_k": 40},
    "top-p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "min-p 0.05": {"temperature": 1.0, "min_p": 0.05},
    "penalties": {"temperature": 1.0, "repetition_penalty": 1.1, "presence_penalty": 0.5},
    "coupled": {"temperature": 1.0, "seed": 1},
    "coupled, top-p 0.9": {"temperature": 1.0, "top_p": 0.9, "seed": 1},
}


def microseconds(llm: LLM, prompts: list[list[int]], params: SamplingParams, *, greedy: bool) -> tuple[float, float]:
    """Median time per step of verification, all requests together, and of the forward pass.

    greedy  the texts go on with the most probable tokens, whatever is drawn.
    """
    requests = [Request(prompt, params) for prompt in prompts]
    verifying, passes = [0.0], [0.0]
    for request in requests:
        llm.engine.submit(request)
        request.verify = _timed(request.verify, verifying)
        if greedy:
            request.verify = _as_if_greedy(request.verify)
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


def _as_if_greedy(verify):  # type: ignore[no-untyped-def]
    def verified(logits, *arguments):  # type: ignore[no-untyped-def]
        verify(logits, *arguments)
        return Outcome((), int(logits[0].argmax()))

    return verified


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="alias or path of a .gguf file (default: smollm2)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    llm = LLM(options.model, speculation="off", threads=options.threads, context_length=512)
    rng = np.random.default_rng(0)
    prompts = {
        "random prompts": [[int(token) for token in rng.integers(100, 40000, 64)] for _ in range(REQUESTS)],
        "questions": [llm.encode([{"role": "user", "content": question}]) for question in QUESTIONS],
    }
    passes: dict[tuple[str, str], list[float]] = {(kind, name): [] for kind in prompts for name in RULES}

    def measure(kind: str, name: str) -> float:
        params = SamplingParams(ignore_eos=True, **RULES[name])
        verifying, forward = microseconds(llm, prompts[kind], params, greedy=kind == "questions")
        passes[kind, name].append(forward)
        return verifying

    figures = common.interleave({key: lambda key=key: measure(*key) for key in passes}, options.rounds)
    common.console.print(common.describe_machine("outrider", "numpy") + "\n")
    for kind in prompts:
        rows = [
            [
                name,
                common.spread(figures[kind, name], 0),
                f"{common.median_ratio(figures[kind, name], passes[kind, name][1:]):.1%}",
            ]
            for name in RULES
        ]
        common.table(f"{kind}: {REQUESTS} rows a step", ["rule", "sampling, µs a step", "of the pass"], rows)


if __name__ == "__main__":
    main()
