"""The one loop on a scripted target: greedy text is the text of plain decoding, whatever is drafted and scheduled."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.request import Drafting, Request
from outrider.sampling import SamplingParams
from outrider.types import EMPTY, Proposal
from tests.scripted import (
    ScriptedDrafter,
    ScriptedModel,
    accepted,
    constant,
    drain,
    generate,
    greedy_text,
    make_engine,
    noisy,
    nothing,
    perfect,
    run,
    scattered,
    shifted,
)

LAW = noisy()
DRAFTS = {
    "nothing": nothing,
    "perfect": perfect(LAW),
    "half right": accepted(LAW, lambda request: len(request.tokens) % 4, 5),
    "always wrong": accepted(LAW, lambda request: 0, 3),
    "one token late": shifted(LAW),
    "the same again": constant(3, 3, 3, 3),
    "tree": scattered(LAW, 3),
    "on and off": lambda request: perfect(LAW, 3)(request) if len(request.tokens) % 2 else EMPTY,
}


@pytest.mark.parametrize("max_draft", [0, 1, 2, 8, 40])
@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_greedy_text_does_not_depend_on_drafts(draft, max_draft):
    """B26, B98, B114: also k = 0, k = 1, and a prompt of a single token."""
    for prompt in ([10], [1, 2, 3], list(range(16)) * 3):
        request = generate(make_engine(ScriptedModel(LAW), draft, max_draft=max_draft), prompt)
        assert request.output == greedy_text(LAW, prompt, 12)
        assert request.finish_reason == "length"


def test_plain_decoding_is_the_scripted_text_so_a_wrong_model_would_show():
    """Negative control of the text oracle: another law gives another text."""
    assert generate(make_engine(ScriptedModel(noisy(seed=1))), [10]).output != greedy_text(LAW, [10], 12)


@pytest.mark.parametrize("k", range(1, 7))
def test_every_number_of_accepted_tokens_is_committed_exactly(k):
    """B11, B13, B29: a step of a accepted tokens commits a + 1, for a = 0 .. k in turn; rejected ones leave nothing."""
    steps = itertools.cycle(range(k + 1))
    accepts: list[int] = []

    def count(request):
        accepts.append(next(steps))
        return accepts[-1]

    engine = make_engine(ScriptedModel(LAW), accepted(LAW, count, k))
    request = Request([1, 2], SamplingParams(max_tokens=200))
    engine.submit(request)
    assert [len(item.token_ids) for item in engine.step()] == [1]  # the prompt's chunk
    while request.left > k + 1:
        before = request.completion_tokens
        (emitted,) = engine.step()
        assert len(emitted.token_ids) == accepts[-1] + 1
        assert request.completion_tokens == before + accepts[-1] + 1
        assert request.kv.length == len(request.tokens) - 1
    drain(engine)
    assert request.output == greedy_text(LAW, [1, 2], 200)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_a_perfect_draft_is_accepted_in_every_step(k):
    """B28, B126: k tokens of k, the bonus token is not among them."""
    engine = make_engine(ScriptedModel(LAW), perfect(LAW, k))
    request = generate(engine, [5], SamplingParams(max_tokens=10 * (k + 1)))
    assert (request.stats.steps, request.stats.drafted, request.stats.accepted) == (10, 10 * k, 10 * k)
    assert engine.target.row_counts == [k + 1] * 10


def test_drafted_counts_what_was_sent_to_verification():
    """B127, B129: k = 5, 2, 0, 1 over four steps is 8 drafted, and what was cut before is not counted."""
    plan = iter([7, 2, 0, 1])
    engine = make_engine(
        ScriptedModel(LAW), lambda request: Proposal.chain([2] * next(plan, 0), "scripted"), max_draft=5
    )
    request = Request([1], SamplingParams(max_tokens=100))
    engine.submit(request)
    for _ in range(4):
        engine.step()
    assert request.stats.drafted == 8
    engine.cancel(request)
    drain(engine)


@pytest.mark.parametrize("max_batch", range(1, 9))
def test_ragged_requests_do_not_touch_each_other(max_batch):
    """B81, B84, B89: eight requests, each with its own prompt length, k and accepted tokens, equal their solo runs."""
    draft = accepted(LAW, lambda request: (len(request.tokens) * 7 + request.id) % 6, 5)
    prompts = [[(3 * i + j) % 16 for j in range(1 + 5 * i)] for i in range(8)]
    requests = [Request(prompt, SamplingParams(max_tokens=9 + 2 * i)) for i, prompt in enumerate(prompts)]
    run(make_engine(ScriptedModel(LAW), draft, max_batch=max_batch, chunk=20), *requests)
    for request in requests:
        assert request.output == greedy_text(LAW, request.prompt, request.params.max_tokens)


def test_each_request_is_drafted_for_from_its_own_text():
    """B84: with a perfect draft, every request of a batch accepts everything."""
    requests = [Request([i, 2, i], SamplingParams(max_tokens=17)) for i in range(6)]
    run(make_engine(ScriptedModel(LAW), perfect(LAW, 3)), *requests)
    assert all(request.stats.accepted == request.stats.drafted == 12 for request in requests)


@pytest.mark.parametrize("chunk", [1, 2, 7, 8, 9, 64])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 17, 64])
def test_a_chunked_prompt_gives_the_same_text(chunk, length):
    """B90, B91: chunks shorter than, equal to and longer than the prompt; no draft before the prompt is computed."""
    prompt = [i * i % 16 for i in range(length)]
    model = ScriptedModel(LAW)
    drafted_after: list[int] = []

    def draft(request):
        drafted_after.append(len(model.row_counts))
        return perfect(LAW, 4)(request)

    request = generate(make_engine(model, draft, chunk=chunk), prompt)
    assert request.output == greedy_text(LAW, prompt, 12)
    assert max(model.row_counts) <= chunk
    assert model.row_counts[: length // chunk] == [chunk] * (length // chunk)
    if chunk > 1:  # with a chunk of one row there is none left for a draft
        assert min(drafted_after) == -(-(length - 1) // chunk)  # all but the last token are computed: it is the root
    else:
        assert not drafted_after


@pytest.mark.parametrize("blocks", [4, 5, 6, 9])
def test_a_small_pool_gives_the_same_text(blocks):
    """B67, B109: drafts shrink, requests are preempted and computed again, admission waits; the text stays."""
    requests = [Request([i] * (5 + 9 * i), SamplingParams(max_tokens=60)) for i in range(5)]
    draft = accepted(LAW, lambda request: len(request.tokens) % 5, 4)
    run(make_engine(ScriptedModel(LAW), draft, blocks=blocks, chunk=16), *requests)
    for request in requests:
        assert request.output == greedy_text(LAW, request.prompt, 60)
    assert any(request.stats.preemptions for request in requests) == (blocks < 9)


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=70), min_size=1, max_size=6),
    draft=st.sampled_from(sorted(DRAFTS)),
    max_tokens=st.integers(1, 40),
    max_draft=st.integers(0, 40),
    max_batch=st.integers(1, 4),
    chunk=st.integers(1, 100),
    blocks=st.integers(4, 12),
)
def test_the_text_is_a_function_of_the_prompt_alone(prompts, draft, max_tokens, max_draft, max_batch, chunk, blocks):
    requests = [Request(prompt, SamplingParams(max_tokens=max_tokens)) for prompt in prompts]
    engine = make_engine(
        ScriptedModel(LAW), DRAFTS[draft], max_batch=max_batch, chunk=chunk, max_draft=max_draft, blocks=blocks
    )
    run(engine, *requests)
    for request in requests:
        assert request.output == greedy_text(LAW, request.prompt, max_tokens)


def test_the_second_run_equals_the_first():
    """B24: nothing of a request survives it."""
    engine = make_engine(ScriptedModel(LAW), perfect(LAW))
    first = generate(engine, [1, 2, 3]).output
    generate(engine, [9] * 40)
    assert generate(engine, [1, 2, 3]).output == first


def test_greedy_breaks_ties_by_the_lowest_id_alone_and_in_a_mixed_batch():
    """B16: a greedy request beside one that samples."""
    flat = ScriptedModel(lambda path: np.zeros(16, np.float32))
    alone = generate(make_engine(flat, constant(0, 0)), [1])
    mixed = [
        Request([1], SamplingParams(max_tokens=12)),
        Request([1], SamplingParams(max_tokens=12, temperature=1.0, seed=3)),
        Request([1], SamplingParams(max_tokens=12, top_p=0.9)),
    ]
    run(make_engine(flat, constant(0, 0)), *mixed)
    assert alone.output == mixed[0].output == mixed[2].output == [0] * 12
    assert len(set(mixed[1].output)) > 3


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_a_seeded_text_does_not_depend_on_drafts_neighbours_or_history(draft):
    """B17, B18: coupled sampling, as the first request and as a later one, alone and in a batch."""
    params = SamplingParams(max_tokens=20, temperature=0.7, seed=11)
    plain = generate(make_engine(ScriptedModel(LAW)), [4, 2], params).output
    engine = make_engine(ScriptedModel(LAW), draft)
    seedless = Request([4, 2], SamplingParams(max_tokens=20, temperature=0.7))
    others = [seedless, Request([4, 2], SamplingParams(max_tokens=20, temperature=0.7, seed=12))]
    run(engine, *others)
    mine = Request([4, 2], params)
    run(engine, Request([1], SamplingParams(max_tokens=30)), mine, Request([4, 2], params, choice=1))
    assert mine.output == plain
    assert others[1].output != plain  # negative control: the seed does matter


def test_pieces_tell_where_their_tokens_are_from():
    """Plain, accepted, recovered and bonus text; a plain step is one without a proposal."""
    counts = iter([2, 1])
    draft = accepted(LAW, lambda request: next(counts), 2)
    engine = make_engine(ScriptedModel(LAW), lambda request: draft(request) if len(request.tokens) < 6 else EMPTY)
    emitted = run(engine, Request([1, 2], SamplingParams(max_tokens=7)))
    assert [[piece.source for piece in item.pieces] for item in emitted] == [
        ["plain"],
        ["accepted", "accepted", "bonus"],
        ["plain"],
        ["plain"],
        ["plain"],
    ]
    engine = make_engine(ScriptedModel(LAW), accepted(LAW, lambda request: 1, 2))
    emitted = run(engine, Request([1, 2], SamplingParams(max_tokens=4)))
    assert [[piece.source for piece in item.pieces] for item in emitted] == [
        ["plain"],
        ["accepted", "recovered"],
        ["plain"],
    ]


def test_each_token_has_a_source_and_each_step_says_what_it_drafted():
    """Also where the run is cut: the text ends at the fourth token of five, which the last step accepted."""
    engine = make_engine(ScriptedModel(LAW), accepted(LAW, lambda request: 3, 4))
    emitted = run(
        engine, Request([1, 2], SamplingParams(max_tokens=20, stop_token_ids=(greedy_text(LAW, [1, 2], 4)[3],)))
    )
    assert [item.sources for item in emitted] == [("plain",), ("accepted",) * 3]
    assert [len(item.sources) for item in emitted] == [len(item.token_ids) for item in emitted]
    assert [item.drafting for item in emitted] == [Drafting(), Drafting(8, 4, 3, "scripted")]


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_logprobs_are_those_of_plain_decoding(draft):
    """B69: one entry per token, from the row that chose it; and a wrong row would be seen."""
    params = SamplingParams(max_tokens=15, logprobs=3)
    plain = generate(make_engine(ScriptedModel(LAW)), [7, 7], params)
    drafted = generate(make_engine(ScriptedModel(LAW), draft), [7, 7], params)
    assert drafted.logprobs == plain.logprobs
    assert len(plain.logprobs) == 15
    assert len({entry.chosen for entry in plain.logprobs}) == 15


def test_the_drafter_observes_what_was_committed():
    """B88: the engine's growing list is the only one; what is observed joins to the output."""
    drafter = ScriptedDrafter(accepted(LAW, lambda request: len(request.tokens) % 3, 3))
    request = generate(make_engine(ScriptedModel(LAW), drafter), [3] * 40)
    assert [token for item in drafter.observed for token in item.committed] == request.output
    assert not drafter.alive
