"""Speed-up by drafter and task on Spec-Bench's questions (Xia et al. 2024, arXiv 2401.07851), and what theory promises.

    python benchmarks/spec_bench.py PROMPTS                                 # about ten minutes for 240 questions
    python benchmarks/spec_bench.py PROMPTS --draft my-draft --limit 5      # five questions of each task
    python benchmarks/spec_bench.py PROMPTS --drafters ngram,suffix --count # tokens per step only, in batches
    python benchmarks/spec_bench.py PROMPTS --draft my-draft --drafters suffix,eagle,auto --count

PROMPTS is in Spec-Bench's own format (question_id, category, turns), of which the first turns are answered. Plain
decoding and every drafter, always with k tokens, and auto, the policy, answer each question in turn, alone, and the
texts are compared. Speed is that of decoding:
tokens per second after the first step; the prompt's own pass is the same for all. A drafter's is charged to it. With
--count auto drafts as if rows were free: whoever promises most, as much as may be drafted.

The prediction is S = tokens / sum over steps of (k c + v(k + 1)) for the k that each step drafted (Leviathan et al.
2023, theorem 3.8, with a pass's real cost): c is timed around the drafter, v by passes at the task's own context.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import common

from outrider import LLM, SamplingParams
from outrider.cache import KVCache
from outrider.cli.prompts import read_prompts
from outrider.drafters.base import Drafter, DraftRequest, Observation, RequestView
from outrider.engine import Engine
from outrider.policy.costs import FREE
from outrider.request import Request
from outrider.scheduler import Work
from outrider.tokenizer import Detokeniser
from outrider.types import EMPTY, Proposal

TASKS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
CONTEXT, BATCH, PASSES = 4096, 8, 25
PLAIN = "off"


def task_of(category: str) -> str:
    """The six task groups; MT-Bench's eight categories are one of them."""
    return category if category in TASKS else TASKS[0]


@dataclass
class Timed(Drafter):
    """Another drafter, its time and the lengths of what it proposed."""

    inner: Drafter
    seconds: float = 0.0
    lengths: Counter[int] = field(default_factory=Counter)
    """Drafted tokens per step."""

    def __post_init__(self) -> None:
        self.name = self.inner.name

    def begin(self, request: RequestView) -> None:
        self.inner.begin(request)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        start = time.perf_counter()
        proposals = self.inner.propose(requests)
        self.seconds += time.perf_counter() - start
        return proposals

    def observe(self, observation: Observation) -> None:
        start = time.perf_counter()
        self.inner.observe(observation)
        self.seconds += time.perf_counter() - start
        self.lengths[len(observation.proposal)] += 1

    def end(self, request_id: int) -> None:
        self.inner.end(request_id)


@dataclass(frozen=True)
class Run:
    """Answers to one or more questions: the counts, and seconds per token after the first step."""

    tokens: int
    steps: int
    drafted: int
    accepted: int
    texts: tuple[tuple[int, ...], ...]
    pace: float
    drafting: float
    lengths: Counter[int]


@dataclass
class Bench:
    """One engine for all ways of decoding, and what came of each, by way and task."""

    llm: LLM
    drafter: Timed
    engine: Engine
    batch: int
    runs: dict[str, dict[str, list[Run]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    @classmethod
    def of(cls, llm: LLM, k: int, batch: int) -> Bench:
        """With the drafters of the LLM."""
        drafter = Timed(llm.policy)
        engine = Engine(
            llm.model,
            KVCache(llm.model.kv_shape, batch * KVCache.blocks_for(CONTEXT)),
            drafter,
            eos_ids=llm.tokenizer.eos_ids,
            make_detokeniser=lambda: Detokeniser(llm.tokenizer),
            max_batch=batch,
            max_draft=k,
        )
        return cls(llm, drafter, engine, batch)

    def answer(self, way: str, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Run:
        """Answer the questions, in one batch."""
        drafter = self.drafter
        drafter.seconds, drafter.lengths = 0.0, Counter()
        requests = [self.llm.request(list(prompt), params, speculation=way, reuse=False) for prompt in prompts]
        for request in requests:
            self.engine.submit(request)
        while not self.engine.idle:
            self.engine.step()
        for request in requests:
            if request.error:
                raise request.error
        timings = requests[0].timings
        seconds = (timings.finished or 0.0) - (timings.first_token or 0.0)
        stats = [request.stats for request in requests]
        return Run(
            tokens=sum(request.completion_tokens for request in requests),
            steps=sum(s.steps for s in stats),
            drafted=sum(s.drafted for s in stats),
            accepted=sum(s.accepted for s in stats),
            texts=tuple(tuple(request.output) for request in requests),
            pace=seconds / max(requests[0].completion_tokens - 1, 1),
            drafting=drafter.seconds,
            lengths=drafter.lengths,
        )


class Passes:
    """Passes of the target that check chains of k tokens, timed in turn."""

    def __init__(self, llm: LLM, k: int) -> None:
        self._llm = llm
        self._cache = KVCache(llm.model.kv_shape, KVCache.blocks_for(CONTEXT))
        self._k = k

    def seconds(self, context: int) -> list[list[float]]:
        """Of passes of 1 to k + 1 rows after so many tokens, PASSES times each."""
        tokens = [10 + i % 1000 for i in range(context)]
        times: list[list[float]] = [[] for _ in range(self._k + 1)]
        request = Request(tokens)
        try:
            prefix = self._cache.reserve([Work(request, 0, context, 0, wanted=False)], [EMPTY])
            self._llm.model.forward(prefix, self._cache)
            self._cache.commit(request.kv, context - 1, ())
            for turn in range(1 + PASSES):
                for drafted, samples in enumerate(times):
                    work = Work(request, context - 1, context, drafted, wanted=True)
                    rows = self._cache.reserve([work], [Proposal.chain(tokens[:drafted], "timing")])
                    start = time.perf_counter()
                    self._llm.model.forward(rows, self._cache)
                    if turn:  # the first one warms up
                        samples.append(time.perf_counter() - start)
                    self._cache.trim(request.kv)
        finally:
            self._cache.release(request.kv)
        return times


def compare(
    bench: Bench, ways: Sequence[str], questions: Mapping[str, list[list[int]]], params: SamplingParams
) -> None:
    """Every question is answered in every way, in turn; exits if the texts differ."""
    done, total = 0, sum(map(len, questions.values()))
    for task, prompts in questions.items():
        for start in range(0, len(prompts), bench.batch):
            group = prompts[start : start + bench.batch]
            for way in ways:
                run = bench.answer(way, group, params)
                bench.runs[way][task].append(run)
                if params.rule in ("greedy", "coupled") and run.texts != bench.runs[PLAIN][task][-1].texts:
                    raise SystemExit(
                        f"{way}, {task}, question {start + 1}: the text differs from that of plain decoding"
                    )
            done += len(group)
            if common.console.is_terminal:
                common.console.print(f"{done} of {total}", end="\r")


def counts(runs: Sequence[Run]) -> tuple[float, float]:
    """Tokens per step, and accepted over drafted tokens."""
    drafted = sum(run.drafted for run in runs)
    tokens_per_step = sum(run.tokens for run in runs) / sum(run.steps for run in runs)
    return tokens_per_step, sum(run.accepted for run in runs) / drafted if drafted else 0.0


def report_counts(bench: Bench) -> None:
    rows = []
    for way, tasks in bench.runs.items():
        figures = [counts(runs)[0] for runs in tasks.values()]
        rows.append([way, *(f"{figure:.2f}" for figure in (*figures, statistics.fmean(figures)))])
    common.table("Tokens per step", ["drafter", *bench.runs[PLAIN], "mean"], rows)


def report_speed(way: str, bench: Bench, passes: Mapping[str, list[list[float]]]) -> None:
    """Counts, measured and predicted speed-up of one way, by task and on average."""
    rows, figures = [], []
    for task, runs in bench.runs[way].items():
        tokens_per_step, acceptance = counts(runs)
        paces = [run.pace for run in bench.runs[PLAIN][task]], [run.pace for run in runs]
        lengths = sum((run.lengths for run in runs), Counter())
        one_row = statistics.median(passes[task][0])
        v = [common.median_ratio(samples, passes[task][0]) for samples in passes[task]]
        drafted = sum(k * steps for k, steps in lengths.items())
        c = sum(run.drafting for run in runs) / max(drafted, 1) / one_row
        cost = sum(steps * (k * c + v[k]) for k, steps in lengths.items()) / lengths.total()
        measured, predicted = common.median_ratio(*paces), tokens_per_step / cost
        mean_k = drafted / lengths.total()
        figures.append((tokens_per_step, acceptance, mean_k, c, v[-1], measured, predicted, measured / predicted))
        rows.append([task, len(runs), *cells(figures[-1])])
    rows.append(["mean", "", *cells([statistics.fmean(column) for column in zip(*figures, strict=True)])])
    columns = [
        "task",
        "texts",
        "tokens per step",
        "accepted",
        "k",
        "c",
        f"v({len(v)})",
        "speed-up",
        "predicted",
        "of it",
    ]
    common.table(f"{way}, against plain decoding", columns, rows)


def cells(figures: Sequence[float]) -> list[str]:
    tokens_per_step, acceptance, k, c, v, measured, predicted, ratio = figures
    return [
        f"{tokens_per_step:.2f}", f"{acceptance:.0%}", f"{k:.1f}", f"{c:.3f}", f"{v:.2f}",
        f"{measured:.2f}", f"{predicted:.2f}", f"{ratio:.2f}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--drafters", default="suffix,auto", help="names, separated by commas; auto is the policy")
    parser.add_argument("--draft", type=Path, help="what was made to draft for the model; see outrider generate")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--acceptance", choices=("coupled", "rejection", "block"), help="when sampling (coupled)")
    parser.add_argument("--limit", type=int, help="questions of each task; default: all")
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("--k", type=int, default=5, help="most drafted tokens in a step")
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--count", action="store_true", help=f"no times: {BATCH} questions at once, tokens per step only"
    )
    arguments = parser.parse_args()
    batch = BATCH if arguments.count else 1
    params = SamplingParams(
        max_tokens=arguments.tokens, temperature=arguments.temperature, seed=1, acceptance=arguments.acceptance
    )
    names = list(filter(None, arguments.drafters.split(",")))
    llm = LLM(
        arguments.model,
        draft=arguments.draft,
        speculation="ngram" if "ngram" in names else "auto",  # which is there only where it is asked for
        context_length=CONTEXT,
        max_batch=batch,
        max_draft=arguments.k,
        threads=arguments.threads,
        costs=FREE if arguments.count else None,
    )
    bench = Bench.of(llm, arguments.k, batch)
    ways = [PLAIN, *(name if name == "auto" else f"{name}:{arguments.k}" for name in names)]

    questions: dict[str, list[list[int]]] = {task: [] for task in TASKS}
    for entry in read_prompts(arguments.prompts, raw=False, system=None):
        prompts = questions[task_of(str(entry.fields.get("category", "")))]
        if arguments.limit is None or len(prompts) < arguments.limit:
            prompts.append(llm.encode(entry.prompt))
    questions = {task: prompts for task, prompts in questions.items() if prompts}

    common.console.print(common.describe_machine("outrider", "numpy"))
    common.console.print(f"model {llm.path.name}, {llm.model.threads} threads, at most {arguments.k} drafted tokens, "
                         f"{arguments.tokens} tokens, temperature {params.temperature:g}, {params.rule}\n")  # fmt: skip
    compare(bench, ways, questions, params)
    if arguments.count:
        report_counts(bench)
        return
    passes = Passes(llm, arguments.k)
    times = {
        task: passes.seconds(arguments.tokens // 2 + int(statistics.fmean(map(len, prompts))))
        for task, prompts in questions.items()
    }
    for way in ways[1:]:
        report_speed(way, bench, times)
    if params.rule in ("greedy", "coupled"):
        common.console.print("All texts are those of plain decoding.")


if __name__ == "__main__":
    main()
