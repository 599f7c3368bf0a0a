"""A trace has all parts of each step in their order, and leaves the engine as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider import LLM, SamplingParams
from outrider.trace import traced
from tests.tiny import tiny_llama

PARTS = ["schedule", "draft", "lay out rows", "forward", "verify", "commit", "observe"]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(tiny_llama(tmp_path_factory.mktemp("trace") / "tiny.gguf"), speculation="suffix:3", threads=1)


def test_each_step_has_its_parts_within_its_time(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    before = [dict(vars(part)) for part in (llm.engine, llm.engine.scheduler, llm.engine.drafter, llm.engine.target)]
    with traced(llm.engine, path):
        (completion,) = llm.generate([[1, 2, 3, 1, 2, 3, 1, 2]], SamplingParams(max_tokens=12, ignore_eos=True))
    after = [vars(part) for part in (llm.engine, llm.engine.scheduler, llm.engine.drafter, llm.engine.target)]
    assert [set(each) for each in after] == [set(each) for each in before]
    events = json.loads(path.read_text())
    steps = [event for event in events if event["name"] == "step"]
    assert len(steps) == completion.steps
    for step in steps:
        inside = [e for e in events if e is not step and step["ts"] <= e["ts"] <= step["ts"] + step["dur"]]
        assert [event["name"] for event in inside] == PARTS
        ends = [event["ts"] + event["dur"] for event in inside]
        assert all(end <= later["ts"] + 1 for end, later in zip(ends, inside[1:], strict=False))
        assert ends[-1] <= step["ts"] + step["dur"] + 1
    for name, key, total in (("draft", "drafted", completion.drafted), ("commit", "accepted", completion.accepted)):
        assert sum(event["args"][key] for event in events if event["name"] == name) == total


def test_what_breaks_off_leaves_a_whole_file_and_the_engine_as_it_was(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with pytest.raises(KeyboardInterrupt), traced(llm.engine, path):
        raise KeyboardInterrupt
    assert json.loads(path.read_text()) == []
    assert llm.generate([[1, 2]], SamplingParams(max_tokens=2))
