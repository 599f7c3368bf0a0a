"""Rows of the file past the tokenizer's ids never have a logit: the texts are those of a model without them (B72)."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider import LLM, ModelError, SamplingParams
from outrider.heads.checkpoint import read_official
from outrider.policy.costs import FREE
from tests.heads.tiny_head import tiny_head
from tests.tiny import tiny_llama

PADDING = 51
PARAMS = [
    SamplingParams(max_tokens=30, ignore_eos=True, logprobs=3),
    SamplingParams(max_tokens=30, ignore_eos=True, logprobs=3, temperature=3.0, seed=1),
    SamplingParams(max_tokens=30, ignore_eos=True, temperature=3.0, seed=1, top_k=20, acceptance="block"),
    SamplingParams(
        max_tokens=30, ignore_eos=True, temperature=3.0, seed=1, frequency_penalty=1, acceptance="rejection"
    ),
]


@pytest.fixture(scope="module", params=[False, True], ids=["own head", "tied"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    exact, padded = (
        tiny_llama(folder / f"{padding}.gguf", layers=7, tied=request.param, padding=padding)
        for padding in (0, PADDING)
    )
    return exact, padded


@pytest.mark.parametrize("speculation", ["off", "suffix:4", "model:3", "eagle:3"])
def test_the_texts_are_those_without_the_padding(models: tuple[Path, Path], speculation: str, tmp_path: Path) -> None:
    texts = []
    for model, padding in zip(models, (0, PADDING), strict=True):
        head = tiny_head(tmp_path / f"{padding}", vocabulary=269 + padding, draft_vocabulary=269 + padding)
        draft = {"model:3": model, "eagle:3": head}.get(speculation)
        llm = LLM(model, speculation=speculation, draft=draft, threads=1, costs=FREE)
        assert llm.model.vocabulary_size == llm.tokenizer.vocabulary_size == 269
        texts.append([llm.generate("a b a b", params)[0] for params in PARAMS])
        if draft:
            assert all(text.drafted for text in texts[-1])
    exact, padded = texts
    same = 2 if speculation == "eagle:3" else len(PARAMS)  # the heads are two, and draws depend on what is drafted
    assert [text.token_ids for text in padded[:same]] == [text.token_ids for text in exact[:same]]
    assert [text.logprobs for text in padded] == [text.logprobs for text in exact]
    assert all(text.finish_reason == "length" for text in padded)


def test_a_head_for_the_padding_alone_is_refused(tmp_path: Path) -> None:
    head = read_official(tiny_head(tmp_path))
    first = int(head.target_ids[0])
    assert head.within(first + 1).target_ids.tolist() == [first]
    with pytest.raises(ModelError, match=f"proposes only tokens that the tokenizer, with {first}, lacks"):
        head.within(first)
