"""What goes wrong stays where it is: drafters that lie, rows of NaN, passes that fail, cancelled requests."""

from __future__ import annotations

import logging
import random
from typing import Any, cast

import numpy as np
import pytest

from outrider.cache import KVCache
from outrider.errors import NumericError, RequestError
from outrider.guard import sanitise
from outrider.policy.controller import Controller
from outrider.request import Request
from outrider.sampling import SamplingParams
from outrider.types import ROOT, Proposal, Rows
from tests.scripted import (
    Letters,
    ScriptedDrafter,
    ScriptedModel,
    constant,
    drain,
    generate,
    greedy_text,
    make_engine,
    noisy,
    perfect,
    run,
    scattered,
    script,
)

LAW = noisy()


def nodes(tokens: Any, parents: Any, estimates: Any = None, q: Any = None) -> Proposal:
    """A proposal of whatever is given, right or wrong."""
    count = len(tokens)
    return Proposal(tokens, parents, "bad", estimates or (1.0,) * count, q or (None,) * count)


def raising(request):
    raise OSError("out of ideas")


rng = random.Random(0)
BAD = {
    "raises": raising,
    "no proposal": lambda request: None,
    "no tuple": lambda request: nodes(5, 5, 5, 5),
    "random ids": lambda request: Proposal.chain([rng.randrange(16) for _ in range(request.most)], "bad"),
    "past the vocabulary": constant(1, 16),
    "negative": constant(-1),
    "huge": constant(2**70),
    "a float": lambda request: nodes((1.0,), (ROOT,)),
    "a string": lambda request: nodes("ab", (ROOT, 0)),
    "numpy": lambda request: nodes(np.array([1, 2]), np.array([-1, 0])),
    "NaN": lambda request: nodes((float("nan"),), (ROOT,)),
    "too many": lambda request: Proposal.chain([1] * (request.most + 50), "bad"),
    "own parent": lambda request: nodes((1, 2), (ROOT, 1)),
    "later parent": lambda request: nodes((1, 2), (1, ROOT)),
    "parent before the root": lambda request: nodes((1, 2), (ROOT, -2)),
    "parents missing": lambda request: nodes((1, 2), (ROOT,)),
    "q missing": lambda request: nodes((1, 2), (ROOT, 0), q=(None,)),
    "q short": lambda request: nodes((1,), (ROOT,), q=(np.ones(3) / 3,)),
    "q a list": lambda request: nodes((1,), (ROOT,), q=([1 / 16] * 16,)),
    "q no law": lambda request: nodes((1,), (ROOT,), q=(np.ones(16),)),
    "q NaN": lambda request: nodes((1,), (ROOT,), q=(np.full(16, np.nan),)),
    "q negative": lambda request: nodes((1,), (ROOT,), q=(np.r_[-1.0, np.ones(2), np.zeros(13)],)),
    "q impossible": lambda request: nodes((1,), (ROOT,), q=(np.eye(16)[0],)),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("draft", BAD.values(), ids=BAD)
def test_a_bad_drafter_costs_speed_and_no_text(draft, temperature):
    """B75, B76: a proposal is cut at its first impossible node, or dropped; the neighbour's too, and nobody crashes."""
    params = SamplingParams(max_tokens=12, temperature=temperature, seed=5)
    plain = generate(make_engine(ScriptedModel(LAW)), [1, 2], params).output
    requests = [Request([1, 2], params) for _ in range(2)]
    run(make_engine(ScriptedModel(LAW), draft), *requests)
    for request in requests:
        assert request.output == plain
        assert all(type(token) is int for token in request.tokens)


@pytest.mark.parametrize("draft", [BAD["q no law"], BAD["q impossible"], BAD["q short"], BAD["past the vocabulary"]])
def test_a_lying_q_counts_as_not_proposed_under_rejection(draft):
    """Nothing that q promises falsely is ever accepted, so the text is that of plain sampling from the same draws."""
    params = SamplingParams(max_tokens=30, temperature=1.0, seed=5, acceptance="rejection")
    request = generate(make_engine(ScriptedModel(LAW), draft), [1, 2], params)
    assert request.finish_reason == "length"
    assert request.stats.accepted == 0 or draft is BAD["past the vocabulary"]


@pytest.mark.parametrize("method", ["begin", "awake", "propose", "observe", "end"])
def test_every_call_of_a_drafter_may_fail_and_is_reported_once(method, monkeypatch, caplog):
    """The text is that of plain decoding, and the log has one line."""

    def fail(*args: object) -> None:
        raise KeyError(method)

    drafter = ScriptedDrafter(perfect(LAW))
    monkeypatch.setattr(drafter, method, fail)
    with caplog.at_level(logging.WARNING):
        engine = make_engine(ScriptedModel(LAW), drafter)
        assert [generate(engine, [1, 2]).output for _ in range(3)] == [greedy_text(LAW, [1, 2], 12)] * 3
    assert len(caplog.records) == 1
    assert "drafter scripted: KeyError" in caplog.text


def test_a_drafter_that_sleeps_is_neither_asked_nor_told(monkeypatch):
    """For four tokens; then it drafts all the others."""
    drafter = ScriptedDrafter(perfect(LAW))
    engine = make_engine(ScriptedModel(LAW), drafter)
    monkeypatch.setattr(drafter, "awake", lambda ids: ids[: engine.scheduler.running[0].completion_tokens > 4])
    request = generate(engine, [1, 2])
    assert request.output == greedy_text(LAW, [1, 2], 12)
    assert [len(seen.committed) for seen in drafter.observed] == [1, 7]  # the first comes of the prompt
    assert len(drafter.proposed) == 1
    assert not drafter.alive


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_proposals_is_dropped(count, caplog):
    drafter = ScriptedDrafter(perfect(LAW))
    drafter.propose = lambda requests: [Proposal.chain([1], "bad")] * count
    requests = [Request([1, i]) for i in range(2)]
    for request in requests:
        request.params = SamplingParams(max_tokens=5)
    run(make_engine(ScriptedModel(LAW), drafter), *requests)
    for request in requests:
        assert request.output == greedy_text(LAW, request.prompt, 5)
    assert f"{count} proposals for 2 requests" in caplog.text


def test_the_first_impossible_node_ends_the_proposal():
    """What is before it is kept; the fault is named with its value."""
    proposal, fault = sanitise(Proposal.chain([3, 4, 99, 5], "d"), most=8, vocabulary=16)
    assert proposal == Proposal.chain([3, 4], "d")
    assert fault == "token 99, the vocabulary has 0 to 15"
    proposal, fault = sanitise(Proposal.chain([3, 4, 5], "d"), most=2, vocabulary=16)
    assert proposal == Proposal.chain([3, 4], "d")
    assert fault == "3 nodes, 2 are allowed"
    good = Proposal.chain([3, 4, 5], "d")
    assert sanitise(good, most=3, vocabulary=16) == (good, "")


@pytest.mark.parametrize("where", ["prompt", "decoding", "draft"])
def test_a_row_that_is_not_a_number_fails_its_request_alone(where):
    """NaN in the last prompt row, in a later step, or in a drafted row on the accepted path."""
    poisoned = {"prompt": 3, "decoding": 6, "draft": 6}[where]

    def law(path):
        return np.full(16, np.nan, np.float32) if path[0] == 9 and len(path) == poisoned else LAW(path)

    draft = perfect(LAW, 2) if where == "draft" else constant()
    bad, good = Request([9, 1, 1], SamplingParams(max_tokens=12)), Request([1, 2], SamplingParams(max_tokens=12))
    run(make_engine(ScriptedModel(law), draft), bad, good)
    assert bad.finish_reason == "error"
    assert isinstance(bad.error, NumericError)
    assert bad.output == greedy_text(LAW, bad.prompt, len(bad.output))
    assert len(bad.output) <= poisoned - 3
    assert good.output == greedy_text(LAW, good.prompt, 12)
    assert good.error is None


def test_an_id_that_the_tokenizer_lacks_fails_its_request_alone():
    """B72: the model has more rows than the tokenizer has ids, and one of them wins."""

    class Small(Letters):
        def token_bytes(self, token: int) -> bytes:
            if token > 9:
                raise RequestError(f"token id {token} is not in the vocabulary")
            return super().token_bytes(token)

    law = script([1, 2, 12, 3])
    bad, good = Request([1]), Request([1], SamplingParams(max_tokens=2))
    run(make_engine(ScriptedModel(law), perfect(law), letters=Small()), bad, good)
    assert (bad.output, bad.text, bad.finish_reason) == ([1, 2], "bc", "error")
    assert "12" in str(bad.error)
    assert good.output == [1, 2]
    assert good.finish_reason == "length"


@pytest.mark.parametrize("failing", range(1, 9))
def test_a_failed_pass_harms_nothing_and_may_be_tried_again(failing, monkeypatch):
    """B24: what was reserved goes back, also when the pass had written already; the next step takes up the work."""
    model = ScriptedModel(LAW)
    engine = make_engine(model, scattered(LAW), chunk=16, blocks=6)
    requests = [Request([i] * 20, SamplingParams(max_tokens=30)) for i in range(2)]
    forward, passes = model.forward, iter(range(1, 1000))

    def unreliable(rows: Rows, cache: KVCache):
        output = forward(rows, cache)
        if next(passes) == failing:
            raise MemoryError("the machine is full")
        return output

    monkeypatch.setattr(model, "forward", unreliable)
    for request in requests:
        engine.submit(request)
    with pytest.raises(MemoryError):
        drain(engine)
    engine.check_integrity()
    drain(engine)
    for request in requests:
        assert request.output == greedy_text(LAW, request.prompt, 30)


@pytest.mark.parametrize("steps", range(7))
def test_a_cancelled_request_ends_and_its_neighbours_go_on(steps):
    """B86: cancelled while it waits, in its prompt, or in mid-text; the others equal their solo runs."""
    engine = make_engine(ScriptedModel(LAW), perfect(LAW, 2), chunk=20, max_batch=2)
    requests = [Request([i] * 30, SamplingParams(max_tokens=15)) for i in range(3)]
    for request in requests:
        engine.submit(request)
    for victim in requests:
        if victim is requests[steps % 3]:
            emitted = [item for _ in range(steps) for item in engine.step()]
            engine.cancel(victim)
            engine.cancel(victim)
            emitted += drain(engine)
            assert [item.finish_reason for item in emitted if item.request is victim][-1] == "cancelled"
            assert victim.output == greedy_text(LAW, victim.prompt, victim.completion_tokens)
            assert sum(item.request is victim and item.finish_reason is not None for item in emitted) == 1
    for request in requests:
        if request is not requests[steps % 3]:
            assert request.output == greedy_text(LAW, request.prompt, 15)


def test_cancelling_what_is_over_or_unknown_does_nothing():
    """B85: a late cancel does not hit a new request, not even one of the same prompt."""
    engine = make_engine(ScriptedModel(LAW))
    request = generate(engine, [1, 2])
    engine.cancel(request)
    engine.cancel(Request([1, 2]))
    assert generate(engine, [1, 2]).finish_reason == "length"
    assert request.finish_reason == "length"


def test_a_thousand_requests_with_cancels_leak_nothing():
    """B109: the pool at the end is the pool at the start."""
    numbers = random.Random(1)
    engine = make_engine(ScriptedModel(script(range(16))), perfect(script(range(16)), 3), blocks=7, chunk=64)
    living: list[Request] = []
    for number in range(1000):
        request = Request([number % 16] * numbers.randint(1, 40), SamplingParams(max_tokens=numbers.randint(1, 9)))
        engine.submit(request)
        living.append(request)
        if numbers.random() < 0.3:
            engine.cancel(numbers.choice(living[-8:]))
        engine.step()
    drain(engine)
    assert {request.finish_reason for request in living} == {"length", "cancelled"}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request([]), "the prompt is empty"),
        (Request([1, 16]), "16 is no token id; expected 0 to 15"),
        (Request([-1]), "-1 is no token id"),
        (Request(cast(Any, ["a"])), "'a' is no token id"),
        (Request([1] * 50, SamplingParams(max_tokens=50)), "need 99 positions; the KV cache has 64"),
        (Request([1]), "need 255 positions; the KV cache has 64"),
    ],
)
def test_an_impossible_request_is_refused_and_nothing_is_queued(request_, message):
    engine = make_engine(ScriptedModel(LAW), blocks=2)
    with pytest.raises(RequestError, match=message):
        engine.submit(request_)
    assert engine.idle
    assert engine.step() == []


def test_a_request_cannot_be_submitted_twice():
    engine = make_engine(ScriptedModel(LAW))
    request = generate(engine, [1, 2])
    with pytest.raises(RequestError, match="submitted before"):
        engine.submit(request)


@pytest.mark.parametrize("option", [{"max_batch": 0}, {"chunk": 0}, {"max_draft": -1}])
def test_an_impossible_engine_is_refused(option):
    """B98: the smallest legal values work (elsewhere), the others are refused at the start."""
    with pytest.raises(RequestError, match=next(iter(option))):
        make_engine(ScriptedModel(LAW), **option)


def test_the_controller_and_a_single_drafter_are_led_alike():
    """The guard works around a policy as around a drafter."""
    drafter = ScriptedDrafter(perfect(LAW, 4))
    request = generate(make_engine(ScriptedModel(LAW), Controller([drafter])), [1, 2], SamplingParams(max_tokens=11))
    assert request.drafters == ["scripted"]
    assert request.stats.accepted == 8
    assert not drafter.alive
