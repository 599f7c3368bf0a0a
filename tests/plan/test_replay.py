"""Replaying a drafter along a known text gives the steps that the engine takes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from outrider import drafters
from outrider.llm import LLM
from outrider.plan.replay import replay
from outrider.policy.costs import FREE
from outrider.sampling import SamplingParams
from tests.tiny import tiny_llama


@pytest.mark.parametrize("name", ["suffix", "ngram"])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_it_takes_the_steps_of_the_engine(name: str, k: int, tmp_path: Path) -> None:
    llm = LLM(tiny_llama(tmp_path / "tiny.gguf", seed=1), speculation=f"{name}:{k}", threads=1, costs=FREE)
    request = llm.request("the thin thing the thin", SamplingParams(max_tokens=60, ignore_eos=True))
    emitted = [each for each in llm.run([request]) if each.token_ids][1:]
    steps = Counter((each.drafting.drafted, each.drafting.accepted) for each in emitted)
    assert replay(drafters.create(name), [(request.prompt, request.output)], k).outcomes == steps
    assert any(accepted for _, accepted in steps)
    assert any(accepted < drafted for drafted, accepted in steps), "nothing that could be counted wrongly"
