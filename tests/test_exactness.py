"""Speculative text is the plain text on the real model and real prompts, whatever is drafted."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from outrider import LLM, SamplingParams
from outrider.types import Output, Rows
from tests import exactness
from tests.exactness import Texts, Tokens
from tests.tiny import default_model

PER_GROUP = 1
NAMES = [drafter.name for drafter in exactness.drafters({}, 1, 0)]


@dataclass
class Plain:
    llm: LLM
    prompts: list[Tokens]
    texts: dict[SamplingParams, list[Tokens]]

    def known(self, params: SamplingParams) -> Texts:
        return dict(zip(self.prompts, self.texts[params], strict=True))


GREEDY = SamplingParams(max_tokens=64)
SEEDED = SamplingParams(max_tokens=64, temperature=0.8, top_p=0.95, seed=7)


@pytest.fixture(scope="module")
def plain() -> Plain:
    model, path = default_model(), exactness.prompts_file()
    if model is None:
        pytest.skip("the default model is not in the cache: run `outrider generate hello` once")
    if path is None:
        pytest.skip("Spec-Bench's prompts are not here: set OUTRIDER_PROMPTS to their file")
    llm = LLM(model, speculation="off", context_length=2048)
    prompts = exactness.read_prompts(path, llm, sample=PER_GROUP)
    return Plain(llm, prompts, {p: exactness.generate(llm, prompts, p, None).texts for p in (GREEDY, SEEDED)})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_text_is_the_same_with_any_drafter(plain: Plain, params: SamplingParams, name: str) -> None:
    candidates = exactness.drafters(
        plain.known(params), plain.llm.model.vocabulary_size, plain.llm.tokenizer.eos_ids[0]
    )
    drafter = next(drafter for drafter in candidates if drafter.name == name)
    written = exactness.generate(plain.llm, plain.prompts, params, drafter)
    assert exactness.first_difference(plain.texts[params], written.texts) is None
    if isinstance(drafter, exactness.TextDrafter):
        assert written.drafting >= exactness.DRAFTING
    if name == "perfect":
        assert written.tokens_per_step > 6, "a perfect drafter is accepted in full"


def test_alone_and_in_a_batch_the_text_is_the_same(plain: Plain) -> None:
    alone = exactness.generate(plain.llm, plain.prompts[:2], GREEDY, None, batch=1).texts
    assert exactness.first_difference(plain.texts[GREEDY][:2], alone) is None


@pytest.mark.parametrize(("params", "name"), [(GREEDY, "half right"), (SEEDED, "tree")], ids=["greedy", "seeded"])
def test_warm_texts_are_the_cold_ones(plain: Plain, params: SamplingParams, name: str) -> None:
    """A second run finds all of the first in the prefix cache; another turn departs from it inside a block."""
    drafter = next(
        drafter
        for drafter in exactness.drafters(plain.known(params), plain.llm.model.vocabulary_size, 0)
        if drafter.name == name
    )
    prompts = sorted(plain.prompts, key=len)[:3]
    expected = [plain.known(params)[prompt] for prompt in prompts]
    cache = exactness.make_cache(plain.llm)
    for _ in range(2):
        texts = exactness.generate(plain.llm, prompts, params, drafter, cache=cache).texts
        assert exactness.first_difference(expected, texts) is None
    turns = [(*prompt, *text[:40]) for prompt, text in zip(prompts, expected, strict=True)]
    cold = exactness.generate(plain.llm, turns, params, None).texts
    warm = exactness.generate(plain.llm, turns, params, None, cache=cache).texts
    assert exactness.first_difference(cold, warm) is None


def test_a_model_that_is_not_row_invariant_is_caught(plain: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the smallest dependence on the batch, in one pass of five, must change some text."""
    forward, passes = plain.llm.model.forward, 0

    def faulty(rows: Rows, cache: object) -> Output:
        nonlocal passes
        passes += 1
        output = forward(rows, cache)  # type: ignore[arg-type]
        if len(rows.wanted) < 2 or passes % 5:
            return output
        logits = output.logits.copy()
        top = logits[0].argmax()
        logits[0, top] = logits[0].min()
        return Output(logits)

    monkeypatch.setattr(plain.llm.model, "forward", faulty)
    drafter = next(d for d in exactness.drafters(plain.known(GREEDY), 1, 0) if d.name == "perfect")
    texts = exactness.generate(plain.llm, plain.prompts, GREEDY, drafter).texts
    assert exactness.first_difference(plain.texts[GREEDY], texts) is not None
