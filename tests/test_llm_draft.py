"""A model with a draft head: the text is the plain one, greedy and seeded, and unusable heads are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider import LLM, SamplingParams
from outrider.errors import ModelError, RequestError
from outrider.policy.costs import FREE
from tests.heads.tiny_head import tiny_head
from tests.tiny import tiny_llama

PROMPTS = ["the tin in the inn", "a", "0123456789" * 5]
PARAMS = [SamplingParams(max_tokens=48), SamplingParams(max_tokens=48, temperature=0.8, seed=4)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "t.gguf", layers=7)


@pytest.mark.parametrize("speculation", ["eagle:4", "auto"])
def test_the_text_is_the_plain_one(model: Path, tmp_path: Path, speculation: str) -> None:
    draft = tiny_head(tmp_path)
    plain = LLM(model, speculation="off", threads=1)
    drafting = LLM(model, speculation=speculation, draft=draft, threads=1)
    for params in PARAMS:
        expected, actual = plain.generate(PROMPTS, params), drafting.generate(PROMPTS, params)
        assert [c.token_ids for c in actual] == [c.token_ids for c in expected]
        if speculation == "eagle:4":
            assert all(c.drafters == ("eagle",) and c.drafted > 20 for c in actual)


@pytest.mark.parametrize("name", ["ngram", "suffix", "prediction", "model", "eagle"])
def test_a_fixed_length_is_drafted_whatever_a_drafter_would_choose(model: Path, tmp_path: Path, name: str) -> None:
    draft = {"model": model, "eagle": tiny_head(tmp_path)}.get(name)
    llm = LLM(model, speculation=f"{name}:12", draft=draft, max_draft=16, threads=1, costs=FREE)
    prompt = "in the inn " * 9
    request = llm.request(prompt, PARAMS[0])
    request.prediction = llm.generate(prompt, PARAMS[0])[0].token_ids
    lengths = [emitted.drafting.drafted for emitted in llm.run([request])]
    assert max(lengths) == 12


def test_a_length_beyond_the_limit_is_refused_with_it(model: Path) -> None:
    expected = "speculation=suffix:9 is not possible; allowed: at most 8 drafted tokens"
    with pytest.raises(RequestError, match=expected):
        LLM(model, speculation="suffix:9", threads=1, costs=FREE)
    llm = LLM(model, threads=1, costs=FREE)
    with pytest.raises(RequestError, match=expected):
        llm.request("a", speculation="suffix:9")


def test_impossible_drafts_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="of no use with speculation='off'"):
        LLM(model, speculation="off", draft=tmp_path)
    with pytest.raises(RequestError, match=r"allowed drafters: grammar, prediction, suffix$"):
        LLM(model, speculation="eagle")
    with pytest.raises(ModelError, match="vocab_size is 300, the target's is 269"):
        LLM(model, speculation="eagle", draft=tiny_head(tmp_path, vocabulary=300))
    small = tiny_llama(tmp_path / "small.gguf", layers=2)
    with pytest.raises(ModelError, match="2 layers"):
        LLM(small, draft=tiny_head(tmp_path))


def test_prompt_lookup_drafts_where_it_is_asked_for(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "tiny.gguf")
    texts = [
        LLM(model, threads=1, costs=FREE, speculation=name).generate("a b a b a b", SamplingParams(max_tokens=40))[0]
        for name in ("off", "ngram:4")
    ]
    assert texts[0].token_ids == texts[1].token_ids
    assert [text.drafters for text in texts] == [(), ("ngram",)]
    assert "ngram" not in LLM(model, threads=1, costs=FREE).drafters
