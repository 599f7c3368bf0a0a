"""A seeded request gives one text: first or fiftieth, alone or among others, drafted for or not, cold or preempted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from outrider import LLM
from outrider.policy.costs import FREE
from outrider.randomness import Noise, Purpose
from outrider.request import Request
from outrider.sampling import SamplingParams, distribution
from outrider.types import Proposal
from tests.scripted import (
    ScriptedModel,
    constant,
    generate,
    greedy_text,
    make_engine,
    noisy,
    nothing,
    perfect,
    run,
    scattered,
)
from tests.tiny import tiny_llama

LAW = noisy()
SEEDED = SamplingParams(temperature=1.0, seed=7, max_tokens=30)
KINDS = {
    "plain": SEEDED,
    "truncated": replace(SEEDED, top_k=9, top_p=0.9, min_p=0.01, temperature=1.5),
    "penalised": replace(SEEDED, frequency_penalty=0.5, repetition_penalty=1.3, min_tokens=20, stop_token_ids=(3,)),
}
PROMPT = [1, 2, 3]


def coupled_draws(k, shift=0):
    """A drafter with the target's own law up to some error, which draws with the noise that it is given."""

    def draft(request):
        tokens, laws = [], []
        noise = replace(request.noise, seed=request.noise.seed + shift)
        for depth in range(min(k, request.most)):
            path = (*request.tokens, *tokens)
            error = np.random.default_rng([9, *path]).normal(0, 0.3, 16).astype(np.float32)
            law = distribution(LAW(path) + error, request.params)
            tokens.append(law.draw_coupled(noise.ahead(depth)))
            laws.append(law.dense(16))
        return Proposal.chain(tokens, "coupled", q=laws)

    return draft


def keyed_draws(k):
    """A drafter for rejection and block that draws with the noise that it is given."""

    def draft(request):
        tokens, laws = [], []
        for depth in range(min(k, request.most)):
            law = distribution(LAW((*request.tokens, *tokens)) / 2, request.params)
            tokens.append(law.draw(request.noise.ahead(depth).uniform(Purpose.DRAFT)))
            laws.append(law.dense(16))
        return Proposal.chain(tokens, "keyed", q=laws)

    return draft


DRAFTS = {
    "nothing": nothing,
    "perfect if greedy": perfect(LAW, 3),
    "the same again": constant(3, 3, 3, 3),
    "tree": scattered(LAW, 3),
    "coupled, k = 1": coupled_draws(1),
    "coupled, k = 3": coupled_draws(3),
    "coupled, k = 8": coupled_draws(8),
    "drawn, k = 5": keyed_draws(5),
}


def text(params, draft=nothing, prompt=PROMPT, **options):
    return generate(make_engine(ScriptedModel(LAW), draft, **options), prompt, params).output


@pytest.mark.parametrize("params", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_coupled_text_follows_from_the_seed_alone(draft, params):
    expected = text(params)
    assert text(params, draft) == expected
    assert text(params, draft, max_draft=2, chunk=2) == expected


def test_other_seeds_and_choices_give_other_texts_but_not_at_temperature_0():
    """B20, and the negative control of all these tests."""
    texts = {tuple(text(replace(SEEDED, seed=seed))) for seed in range(20)}
    assert len(texts) == 20
    engine = make_engine(ScriptedModel(LAW))
    choices = [Request(PROMPT, SEEDED, choice=choice) for choice in range(3)]
    run(engine, *choices)
    assert len({tuple(request.output) for request in choices}) == 3
    cold = {tuple(text(SamplingParams(seed=seed, max_tokens=30))) for seed in range(3)}
    assert cold == {tuple(greedy_text(LAW, PROMPT, 30))}


@pytest.mark.parametrize("acceptance", ["coupled", "rejection", "block"])
def test_the_first_and_the_fiftieth_request_are_alike(acceptance):
    """B18: no stream that others move on. With rejection and block the same drafter must draw with its keyed noise."""
    params = replace(SEEDED, acceptance=acceptance)
    engine = make_engine(ScriptedModel(LAW), keyed_draws(3))
    texts = [
        generate(engine, PROMPT, params if i in (0, 49) else replace(params, seed=100 + i)).output for i in range(50)
    ]
    assert texts[0] == texts[49]
    assert len({tuple(each) for each in texts}) == 49


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_a_batch_changes_nothing(draft):
    """B17: seeded requests beside others, with and without seeds, of other lengths."""
    expected = text(SEEDED)
    others = [
        Request(
            [i] * (1 + 3 * i), replace(SEEDED, seed=None if i % 2 else i, acceptance="coupled", max_tokens=5 + 6 * i)
        )
        for i in range(7)
    ]
    mine = Request(PROMPT, SEEDED)
    run(make_engine(ScriptedModel(LAW), draft, chunk=20), *others[:3], mine, *others[3:])
    assert mine.output == expected


def test_preemption_changes_nothing():
    requests = [Request([i, 2] * 8, replace(SEEDED, seed=i, max_tokens=60)) for i in range(4)]
    run(make_engine(ScriptedModel(LAW), coupled_draws(4), blocks=6), *requests)
    assert sum(request.stats.preemptions for request in requests) > 0
    assert [r.output for r in requests] == [text(r.params, prompt=r.prompt) for r in requests]


def test_a_drafter_that_shares_the_noise_is_mostly_right():
    def accepted(shift):
        requests = [Request(PROMPT, replace(SEEDED, seed=seed)) for seed in range(20)]
        run(make_engine(ScriptedModel(LAW), coupled_draws(3, shift)), *requests)
        return sum(request.stats.accepted for request in requests) / sum(request.stats.drafted for request in requests)

    assert accepted(0) > 0.6
    assert accepted(1000) < accepted(0) / 2, "with other noise only chance is left"


def test_the_noise_of_a_drafter_is_that_of_the_next_output_token():
    seen = []

    def draft(request):
        seen.append((request.noise, len(request.tokens) - request.prompt_length, request.params))
        return constant(3, 3)(request)

    text(SEEDED, draft)
    assert seen
    assert all(noise == Noise(7, 0, done, done) and params == SEEDED for noise, done, params in seen)


def test_on_a_real_model_too(tmp_path):
    """The tiny model: first and fiftieth, alone and among eight, drafted for and not, with a pool that is too small."""
    path = tiny_llama(tmp_path / "tiny.gguf", seed=1)
    params = SamplingParams(temperature=1.0, top_p=0.9, presence_penalty=0.4, seed=5, max_tokens=24)
    plain = LLM(path, speculation="off", threads=1, context_length=128)
    expected = plain.generate("the thin", params)[0].token_ids
    llm = LLM(path, threads=1, context_length=128, kv_tokens=160, costs=FREE)
    among = llm.generate(["the thin"] * 8, params, prediction=plain.tokenizer.decode(expected[:12]))
    assert {each.token_ids for each in among} == {expected}
    assert sum(each.accepted for each in among) > 0
    for seed in range(41):
        llm.generate("the thin", replace(params, seed=100 + seed, max_tokens=2))
    assert llm.generate("the thin", params)[0].token_ids == expected
    assert plain.generate("the thin", replace(params, seed=6))[0].token_ids != expected
