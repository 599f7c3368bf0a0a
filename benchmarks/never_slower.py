"""Is speculation "auto" ever slower than plain decoding, and how much does it leave to the best fixed length?

    python benchmarks/never_slower.py PROMPTS                     # by work: a few minutes for 240 questions
    python benchmarks/never_slower.py PROMPTS --temperature 1 --batch 8
    python benchmarks/never_slower.py PROMPTS --clock --limit 4   # by the clock, plain and auto in turn
    python benchmarks/never_slower.py PROMPTS --clock --limit 8 --fixed 1,2,3,4   # fixed lengths as well

PROMPTS is in Spec-Bench's own format; texts that are built to defeat drafting (random words, base64, digits) join them.
By work: each step counts what its rows and drafted tokens cost, as measured on this machine, in plain steps of the
request; so does every fixed length. At temperature 1 texts are coupled, so they are the same for all.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import random
import statistics
import string
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import common

from outrider import LLM, Emitted, Request, SamplingParams
from outrider.cli.prompts import read_prompts

TASKS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
HOSTILE = ("random words", "base64", "digits")
CONTEXT = 4096
STEPS = 16  # in a row, of each way in turn


def hostile(seed: int = 5) -> dict[str, str]:
    """One text of each kind that nobody could guess."""
    chance = random.Random(seed)
    words = ("".join(chance.choices(string.ascii_lowercase, k=chance.randint(2, 9))) for _ in range(60))
    return {
        "random words": " ".join(words),
        "base64": base64.b64encode(chance.randbytes(180)).decode(),
        "digits": "".join(chance.choices(string.digits, k=150)),
    }


@dataclass
class Account:
    """What became of one text: tokens while it decoded, and the work that took, in plain steps of its own."""

    group: str
    tokens: int = 0
    work: float = 0.0
    output: tuple[int, ...] = ()

    @property
    def speed(self) -> float:
        """Over plain decoding."""
        return self.tokens / self.work if self.work else 1.0


class Work:
    """Shares the work of steps among their requests: a plain step in equal parts, the rest by drafted tokens."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def enter(self, accounts: Mapping[int, Account], step: Sequence[Emitted]) -> None:
        """Account for one step; prompts that it worked on beside are left out."""
        step = [emitted for emitted in step if emitted.token_ids]
        if not step:
            return
        costs, count = self._llm.costs, len(step)
        context = max(len(emitted.request.tokens) for emitted in step)
        drafted = sum(emitted.drafting.drafted for emitted in step)
        plain = costs.v(count, context) / count
        each = (costs.v(count + drafted, context) - costs.v(count, context)) / drafted if drafted else 0.0
        for emitted in step:
            drafting = emitted.drafting
            c = self._llm.policy.price(drafting.drafter) if drafting.drafted else 0.0
            account = accounts[emitted.request.id]
            account.tokens += len(emitted.token_ids)
            account.work += 1 + drafting.drafted * (each / plain + c)


def by_work(
    llm: LLM, questions: Mapping[str, list[list[int]]], params: SamplingParams, speculation: str, batch: int
) -> list[Account]:
    """The accounts of all texts, so many at a time."""
    flat = [(group, prompt) for group, prompts in questions.items() for prompt in prompts]
    found = []
    work = Work(llm)
    for start in range(0, len(flat), batch):
        accounts: dict[int, Account] = {}
        requests: list[Request] = []
        for group, prompt in flat[start : start + batch]:
            request = llm.request(prompt, params, speculation=speculation)
            accounts[request.id] = Account(group)
            requests.append(request)
            llm.engine.submit(request)
        while not llm.engine.idle:
            work.enter(accounts, llm.engine.step())
        for request in requests:
            accounts[request.id].output = tuple(request.output)
        found += accounts.values()
    return found


def report_work(runs: Mapping[str, list[Account]]) -> None:
    """Auto against plain and against every fixed length, group by group."""
    groups = list(dict.fromkeys(account.group for account in runs["auto"]))

    def speed(name: str, group: str) -> float:
        mine = [account for account in runs[name] if account.group == group]
        return sum(account.tokens for account in mine) / sum(account.work for account in mine)

    fixed = [name for name in runs if name != "auto"]
    table = {group: {name: speed(name, group) for name in runs} | {"off": 1.0} for group in groups}
    rows = []
    for group in groups:
        best = max((*fixed, "off"), key=table[group].__getitem__)
        worst = min((account for account in runs["auto"] if account.group == group), key=lambda a: a.speed)
        auto = table[group]["auto"]
        rows.append([
            group, f"{auto:.3f}", best, f"{table[group][best]:.3f}", f"{auto / table[group][best]:.3f}",
            f"{worst.speed:.3f} ({worst.tokens})",
        ])  # fmt: skip
    means = {name: statistics.fmean(table[group][name] for group in groups) for name in (*runs, "off")}
    single = max((*fixed, "off"), key=means.__getitem__)
    oracle = statistics.fmean(max(table[group][name] for name in (*fixed, "off")) for group in groups)
    rows.append(["mean", f"{means['auto']:.3f}", "each", f"{oracle:.3f}", f"{means['auto'] / oracle:.3f}", ""])
    rows.append(["", "", f"always {single}", f"{means[single]:.3f}", f"{means['auto'] / means[single]:.3f}", ""])
    columns = ("by work", "auto", "best fixed", "its speed", "auto over it", "worst text (tokens)")
    common.table("Speed over plain decoding", columns, rows)


def by_clock(
    llms: Mapping[str, LLM], questions: Mapping[str, list[list[int]]], params: SamplingParams, batch: int, rounds: int
) -> None:
    """Plain, auto and fixed lengths in turn, a few steps at a time: what else the machine does meets all alike.

    The best fixed length is found in the same rounds, by noisy medians, so it looks a little better than it is.
    """
    speeds: dict[str, list[dict[str, float]]] = {group: [] for group in questions}
    for turn in range(rounds):
        for group, prompts in questions.items():
            ways = {name: _Stream(llm, prompts, params, batch) for name, llm in llms.items()}
            while any(way.ended < len(prompts) for way in ways.values()):
                for way in list(ways.values())[:: -1 if turn % 2 else 1]:
                    way.go_on()
            speeds[group].append({name: way.tokens / way.seconds for name, way in ways.items()})
            for way in ways.values():
                way.llm.engine.drop_all()
    over = {group: [each["auto"] / each["off"] for each in found] for group, found in speeds.items()}
    medians = {  # over plain
        group: {name: statistics.median(each[name] / each["off"] for each in found) for name in llms}
        for group, found in speeds.items()
    }
    fixed = [name for name in llms if name != "auto"]
    rows = []
    for group, mine in medians.items():
        row = [group, str(len(questions[group])), f"{mine['auto']:.3f}"]
        if len(llms) > 2:
            best = max(fixed, key=mine.__getitem__)
            left = statistics.median(each["auto"] / each[best] for each in speeds[group])
            row += [best, f"{mine[best]:.3f}", f"{left:.3f}"]
        rows.append(row)
    if len(llms) > 2:
        mean = {name: statistics.fmean(mine[name] for mine in medians.values()) for name in llms}
        oracle = statistics.fmean(max(mine[name] for name in fixed) for mine in medians.values())
        single = max(fixed, key=mean.__getitem__)
        count = str(sum(map(len, questions.values())))
        rows.append(["mean", count, f"{mean['auto']:.3f}", "each", f"{oracle:.3f}", f"{mean['auto'] / oracle:.3f}"])
        rows.append(["", "", "", f"always {single}", f"{mean[single]:.3f}", f"{mean['auto'] / mean[single]:.3f}"])
    for title, adversarial in (("all tasks", False), ("adversarial", True)):
        groups = [group for group in questions if (group in HOSTILE) == adversarial]
        if groups:
            # As if all groups wrote as many tokens at as many tokens per second.
            evenly = statistics.median(
                statistics.harmonic_mean(each) for each in zip(*(over[g] for g in groups), strict=True)
            )
            rows.append([title, str(sum(len(questions[g]) for g in groups)), f"{evenly:.3f}"])
    columns = ["group", "texts", "auto over plain"]
    if len(llms) > 2:
        columns += ["best fixed", "over plain", "auto over it"]
    common.table("By the clock", columns, [row + [""] * (len(columns) - len(row)) for row in rows])


class _Stream:
    """A batch that stays full: the next text begins where one ends, and the first ones again once all have begun.

    tokens, seconds  of the steps in which all were decoding, until as many texts have ended as there are. Steps that
                     work on prompts are left out.
    ended            texts that are finished.
    """

    def __init__(self, llm: LLM, prompts: Sequence[list[int]], params: SamplingParams, batch: int) -> None:
        self.llm = llm
        self.tokens, self.seconds, self.ended = 0, 0.0, 0
        self._waiting = itertools.cycle(prompts)
        self._texts = len(prompts)
        self._params = params
        self._live: dict[int, Request] = {}
        self._batch = batch

    def go_on(self) -> None:
        """Some steps more. The first one finds the caches as another stream has left them, and does not count."""
        for step in range(-1, STEPS):
            while len(self._live) < self._batch:
                request = self.llm.request(next(self._waiting), self._params)
                self.llm.engine.submit(request)
                self._live[request.id] = request
            decoding = all(request.timings.first_token is not None for request in self._live.values())
            begun = time.perf_counter()
            emitted = self.llm.engine.step()
            if decoding and step >= 0 and self.ended < self._texts:
                self.seconds += time.perf_counter() - begun
                self.tokens += sum(len(each.token_ids) for each in emitted)
            for each in emitted:
                if each.finish_reason is not None:
                    del self._live[each.request.id]
                    self.ended += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--draft", type=Path, help="weights of a drafter")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=1, help="requests at a time")
    parser.add_argument("--limit", type=int, help="texts of each group; default: all")
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("--fixed", help="lengths, or NAME:LENGTH, to compare with (by work: 1,2,3,4,6,8)")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--clock", action="store_true", help="seconds, not work")
    parser.add_argument("--rounds", type=int, default=5, help="of --clock")
    arguments = parser.parse_args()
    params = SamplingParams(
        max_tokens=arguments.tokens, temperature=arguments.temperature, seed=1 if arguments.temperature else None
    )
    values = {"draft": arguments.draft, "context_length": CONTEXT, "threads": arguments.threads}
    values["max_batch"] = arguments.batch
    llm = LLM(arguments.model, recalibrate=True, **values)
    if not arguments.clock:
        llm = LLM(arguments.model, costs=llm.costs, **values)  # which no running figures correct
    questions: dict[str, list[list[int]]] = {group: [] for group in (*TASKS, *HOSTILE)}
    for entry in read_prompts(arguments.prompts, raw=False, system=None):
        category = str(entry.fields.get("category", ""))
        questions[category if category in TASKS else TASKS[0]].append(llm.encode(entry.prompt))
    for seed in range(8):
        for group, text in hostile(seed).items():
            questions[group].append(llm.encode(text))
    questions = {group: prompts[: arguments.limit] for group, prompts in questions.items() if prompts}

    common.console.print(common.describe_machine("outrider", "numpy"))
    v = ", ".join(f"v({n}) {llm.costs.v(n, 512):.2f}" for n in (2, 4, 8, 16))
    common.console.print(
        f"model {llm.path.name}, {llm.model.threads} threads, {arguments.batch} at a time, {arguments.tokens} tokens, "
        f"temperature {params.temperature:g}; at 512 tokens {v}\n"
    )
    by_default = "" if arguments.clock else "1,2,3,4,6,8"
    fixed = [name for name in (by_default if arguments.fixed is None else arguments.fixed).split(",") if name]
    if "auto" in fixed:
        parser.error("--fixed: auto is no fixed length; it is measured anyway")
    if arguments.clock:
        ways = {"off": LLM(arguments.model, speculation="off", **{**values, "draft": None}), "auto": llm}
        ways |= {name: LLM(arguments.model, speculation=name, **values) for name in fixed}
        by_clock(ways, questions, params, arguments.batch, arguments.rounds)
        return
    runs: dict[str, list[Account]] = {}
    for name in ("auto", *fixed):
        runs[name] = by_work(llm, questions, params, name, arguments.batch)
        if [account.output for account in runs[name]] != [account.output for account in runs["auto"]]:
            raise SystemExit(f"{name}: the texts differ")
    report_work(runs)


if __name__ == "__main__":
    main()
