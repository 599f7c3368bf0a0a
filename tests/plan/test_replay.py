"""Replaying a drafter along a known text gives the steps that the engine takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from outrider import drafters
from outrider.llm import LLM
from outrider.plan.bench import Bench
from outrider.plan.replay import replay
from outrider.policy.costs import FREE
from outrider.request import Request
from outrider.sampling import SamplingParams
from tests.tables import table_folder
from tests.tiny import tiny_llama

PARAMS = SamplingParams(max_tokens=60, ignore_eos=True)


def taken(llm: LLM, request: Request) -> Counter[tuple[int, int]]:
    """How many steps of the engine, after the first token, drafted and accepted how much."""
    emitted = [each for each in llm.run([request]) if each.token_ids][1:]
    return Counter((each.drafting.drafted, each.drafting.accepted) for each in emitted)


@pytest.mark.parametrize("name", ["suffix", "ngram"])
@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_takes_the_steps_of_the_engine(name: str, k: int, temperature: float, tmp_path: Path) -> None:
    llm = LLM(tiny_llama(tmp_path / "tiny.gguf", seed=1), speculation=f"{name}:{k}", threads=1, costs=FREE)
    params = replace(PARAMS, temperature=temperature, top_k=4, seed=5)
    request = llm.request("the thin thing the thin", params)
    steps = taken(llm, request)
    assert replay(drafters.create(name), [(request.prompt, request.output)], k, params).outcomes == steps
    assert any(accepted for _, accepted in steps)
    assert any(accepted < drafted for drafted, accepted in steps), "nothing that could be counted wrongly"


def test_a_plan_replays_the_drafter_with_the_table_that_the_model_has(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf", seed=1)
    (text,) = LLM(path, speculation="off", threads=1, costs=FREE).generate("Hello", PARAMS)
    llm = LLM(path, draft=table_folder(tmp_path / "draft", text.token_ids), threads=1, costs=FREE)
    request = llm.request("Hello", PARAMS, speculation="suffix:3")
    steps = taken(llm, request)
    bench = Bench(llm, [llm.encode("Hello")], PARAMS, lambda doing, done, total: None, FREE, rounds=2)
    bench.write()
    lengths, _ = bench.draft("suffix", 3)
    assert lengths[-1].outcomes == steps
    bare = replay(drafters.create("suffix"), [(request.prompt, request.output)], 3, PARAMS)
    assert bare.outcomes != steps, "the table makes no difference"
