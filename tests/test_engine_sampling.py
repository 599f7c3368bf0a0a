"""Bias, masks, min_tokens and penalties through the real engine: the text is that of plain decoding by the definitions."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.errors import RequestError
from outrider.request import Request
from outrider.sampling import SamplingParams
from outrider.types import Proposal
from tests.scripted import (
    ScriptedModel,
    constant,
    drain,
    generate,
    make_engine,
    noisy,
    nothing,
    run,
    script,
)
from tests.test_sampling_adjust import literal

VOCABULARY = 5
LAW = noisy(VOCABULARY, seed=4)
PARAMS = {
    "penalties": SamplingParams(repetition_penalty=1.5, presence_penalty=0.7, frequency_penalty=1.1, max_tokens=40),
    "presence": SamplingParams(presence_penalty=-1.5, max_tokens=40),
    "bias": SamplingParams(logit_bias={0: 3.0, 2: -4.5}, max_tokens=40),
    "masks": SamplingParams(allowed_token_ids=(0, 1, 3, 4), banned_token_ids=(4,), max_tokens=40),
    "min_tokens": SamplingParams(min_tokens=8, stop_token_ids=(3,), max_tokens=40),
    "everything": SamplingParams(
        logit_bias={1: 1.0},
        banned_token_ids=(0,),
        min_tokens=20,
        stop_token_ids=(3,),
        repetition_penalty=0.8,
        frequency_penalty=0.5,
        max_tokens=40,
    ),
}


def plain_text(law, prompt, params, count=None):
    """Greedy decoding by the definitions, token by token, without engine or rows."""
    output = []
    while len(output) < (count or params.max_tokens):
        row = literal(law((*prompt, *output)), params, list(prompt), output)
        output.append(int(np.argmax(row)))
        if output[-1] in params.stop_token_ids and count is None:
            break
    return output


def perfect(law, prompt, params, k=4):
    """A chain of the tokens that are going to come, as if nothing would stop them."""

    def draft(request):
        done = len(request.tokens) - request.prompt_length
        text = plain_text(law, prompt, params, done + min(k, request.most))
        return Proposal.chain(text[done:], "scripted")

    return draft


def bushy(law, prompt, params):
    """Below each right token, and below a wrong elder sibling of it, a child; so that paths differ in their counts."""
    right = perfect(law, prompt, params, 3)

    def draft(request):
        tokens, parents, here = [], [], -1
        for token in right(request).tokens:
            wrong = (token + 1) % VOCABULARY
            tokens += [wrong, wrong, token]
            parents += [here, len(parents), here]
            here = len(parents) - 1
        n = len(tokens)
        return Proposal(tuple(tokens), tuple(parents), "scripted", (1.0,) * n, (None,) * n).cut(request.most)

    return draft


DRAFTS = {
    "nothing": lambda *about: nothing,
    "perfect": perfect,
    "tree": bushy,
    "the same again": lambda *about: constant(3, 3, 3, 3),
}


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_greedy_text_follows_the_definitions_whatever_is_drafted(draft, params):
    """B04, B59, B60, B61, B63: also where k tokens are accepted at once."""
    for prompt in ([1], [0, 2, 2, 4]):
        request = generate(
            make_engine(ScriptedModel(LAW, vocabulary=VOCABULARY), draft(LAW, prompt, params)), prompt, params
        )
        assert request.output == plain_text(LAW, prompt, params)
        if draft is perfect:
            assert request.stats.drafted - request.stats.accepted < 4, "only the last step may be cut"


@pytest.mark.parametrize("name", PARAMS)
def test_each_of_them_changes_the_text(name):
    """Negative control: an engine that ignored them (B61) would give other texts."""
    assert plain_text(LAW, [0, 2, 2, 4], PARAMS[name]) != plain_text(LAW, [0, 2, 2, 4], SamplingParams(max_tokens=40))


def test_penalties_applied_once_a_step_would_be_seen(monkeypatch):
    """Negative control (B59): each row judged by the committed tokens alone."""
    monkeypatch.setattr(Proposal, "tokens_to", lambda self, node: [])
    params = PARAMS["penalties"]
    engine = make_engine(ScriptedModel(LAW, vocabulary=VOCABULARY), perfect(LAW, [1], params))
    assert generate(engine, [1], params).output != plain_text(LAW, [1], params)


def test_a_looping_model_is_broken_out_of_its_loop():
    """B61: a -> b -> a, a chain that continues the loop, penalties of 5 and 2."""
    loop = script([0, 1], VOCABULARY)
    params = SamplingParams(repetition_penalty=5, frequency_penalty=2, max_tokens=12)
    request = generate(make_engine(ScriptedModel(loop, vocabulary=VOCABULARY), constant(0, 1, 0, 1)), [2], params)
    assert request.output == plain_text(loop, [2], params)
    assert set(request.output) == set(range(VOCABULARY))


@pytest.mark.parametrize("least", [3, 4, 5, 6])
def test_the_text_may_end_at_the_first_token_after_the_least(least):
    """B64: the target wants to stop at output token 4 (the fifth), and at each one after it."""
    wish = script([0, 1, 0, 1, 3, 3, 3, 3, 3, 3, 3], VOCABULARY)
    params = SamplingParams(min_tokens=least, max_tokens=11)
    model = ScriptedModel(wish, vocabulary=VOCABULARY)
    request = generate(make_engine(model, constant(3, 3, 3, 3), eos_ids=[3]), [2], params)
    assert request.finish_reason == "stop"
    assert request.completion_tokens == max(least, 4) + 1
    assert request.output[4:] == [0] * (least - 4) + [3]


def test_min_tokens_says_nothing_of_an_ignored_end():
    wish = script([3], VOCABULARY)
    params = SamplingParams(min_tokens=5, max_tokens=6, ignore_eos=True)
    request = generate(make_engine(ScriptedModel(wish, vocabulary=VOCABULARY), eos_ids=[3]), [2], params)
    assert request.output == [3] * 6


def test_logprobs_are_those_of_the_raw_target():
    raw = generate(
        make_engine(ScriptedModel(LAW, vocabulary=VOCABULARY)), [1], SamplingParams(max_tokens=1, logprobs=5)
    )
    params = SamplingParams(max_tokens=1, logprobs=5, logit_bias={0: 50.0}, temperature=0.5, seed=1)
    biased = generate(make_engine(ScriptedModel(LAW, vocabulary=VOCABULARY)), [1], params)
    assert biased.output == [0] != raw.output
    assert biased.logprobs[0].top == raw.logprobs[0].top


def test_requests_of_one_batch_keep_their_own_parameters():
    requests = [Request([1], params) for params in PARAMS.values()]
    run(make_engine(ScriptedModel(LAW, vocabulary=VOCABULARY), constant(1, 1)), *requests)
    assert [request.output for request in requests] == [plain_text(LAW, [1], params) for params in PARAMS.values()]


def test_a_preempted_request_keeps_its_counts():
    params = SamplingParams(frequency_penalty=0.4, repetition_penalty=1.2, max_tokens=60)
    requests = [Request([i, 2] * 8, params) for i in range(4)]
    run(make_engine(ScriptedModel(LAW, vocabulary=VOCABULARY), constant(1, 1), blocks=6), *requests)
    assert sum(request.stats.preemptions for request in requests) > 0
    for request in requests:
        assert request.output == plain_text(LAW, request.prompt, params)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (SamplingParams(logit_bias={VOCABULARY: 1}), "logit_bias: 5 is no token id; expected 0 to 4"),
        (SamplingParams(banned_token_ids=(7,)), "banned_token_ids: 7"),
        (SamplingParams(min_tokens=300), "min_tokens=300"),
        (SamplingParams(allowed_token_ids=(3,), min_tokens=1), "no token can come"),
    ],
)
def test_what_the_target_cannot_honour_is_refused_at_submission(params, message):
    """B139"""
    engine = make_engine(ScriptedModel(LAW, vocabulary=VOCABULARY), eos_ids=[3])
    with pytest.raises(RequestError, match=message):
        engine.submit(Request([1], params))
    assert engine.idle


def test_a_request_whose_allowed_tokens_the_target_rules_out_fails_alone():
    law = noisy(VOCABULARY, seed=4, never=[2])
    stuck, fine = Request([1], SamplingParams(allowed_token_ids=(2,))), Request([1], SamplingParams(max_tokens=5))
    engine = make_engine(ScriptedModel(law, vocabulary=VOCABULARY))
    engine.submit(stuck)
    engine.submit(fine)
    drain(engine)
    assert (stuck.finish_reason, fine.finish_reason) == ("error", "length")
    assert "-inf" in str(stuck.error)
