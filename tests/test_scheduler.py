"""Who takes part in a step and with how many rows; the scheduler alone, without target or drafter."""

from __future__ import annotations

import pytest

from outrider.cache import BLOCK, KVCache
from outrider.models.base import KVShape
from outrider.request import Request
from outrider.sampling import SamplingParams
from outrider.scheduler import Run, Scheduler
from outrider.tokenizer.detokeniser import Detokeniser
from outrider.types import EMPTY
from tests.scripted import LETTERS


def make_scheduler(*, blocks=64, max_batch=8, chunk=256, max_draft=8, context=4096):
    cache = KVCache(KVShape(1, 1, 2), blocks)
    return cache, Scheduler(
        cache,
        context_length=context,
        vocabulary_size=16,
        eos_ids=(),
        max_batch=max_batch,
        chunk=chunk,
        max_draft=max_draft,
    )


def submit(scheduler, *lengths, max_tokens=100):
    """One request per prompt length; no two begin with the same token."""
    requests = [Request([n % 16] * length, SamplingParams(max_tokens=max_tokens)) for n, length in enumerate(lengths)]
    for request in requests:
        scheduler.submit(request, Detokeniser(LETTERS))
    return requests


def step(cache, scheduler, tokens=(2,)):
    """One step without drafts; each request that wants logits gets the first of `tokens`."""
    batch = scheduler.schedule()
    proposals = [EMPTY] * len(batch)
    cache.reserve(batch, proposals)
    runs = [Run((), (tokens[0],), ("plain",)) if work.wanted else None for work in batch]
    for commit in scheduler.advance(batch, proposals, runs):
        cache.commit(commit.work.sequence, commit.work.end, commit.kept)
    scheduler.settle([work.request for work in batch])
    return batch


def shape(batch):
    """What matters of a batch: start, end, most, wanted of each piece of work."""
    return [(work.start, work.end, work.most, work.wanted) for work in batch]


def test_a_prompt_is_computed_in_chunks_and_then_decodes():
    cache, scheduler = make_scheduler(chunk=10)
    submit(scheduler, 23)
    assert [shape(step(cache, scheduler)) for _ in range(4)] == [
        [(0, 10, 0, False)],
        [(10, 20, 0, False)],
        [(20, 23, 0, True)],
        [(23, 24, 8, True)],
    ]


def test_a_prompt_of_one_token_may_draft_at_once():
    cache, scheduler = make_scheduler()
    submit(scheduler, 1)
    assert shape(step(cache, scheduler)) == [(0, 1, 8, True)]


def test_decoding_requests_come_first_with_their_drafts_then_prompts():
    """B91: the budget includes k rows per decoding request; a prompt gets what is left."""
    cache, scheduler = make_scheduler(chunk=32)
    submit(scheduler, 3, 3)
    step(cache, scheduler)
    submit(scheduler, 100)
    assert shape(step(cache, scheduler)) == [(3, 4, 8, True), (3, 4, 8, True), (0, 14, 0, False)]


def test_scarce_rows_are_shared_equally_by_drafts_and_a_prompt_still_goes_on():
    """B90, B100: fewer rows than decoding requests want; every request makes progress."""
    cache, scheduler = make_scheduler(chunk=7)
    requests = submit(scheduler, 2, 2, 2)
    step(cache, scheduler)
    while any(request.uncomputed > 1 for request in requests):
        step(cache, scheduler)
    submit(scheduler, 50)
    assert [(work.most, work.end - work.start) for work in step(cache, scheduler)] == [(1, 1), (1, 1), (2, 1), (0, 1)]


def test_a_chunk_of_one_row_still_serves_all_decoding_requests():
    cache, scheduler = make_scheduler(chunk=1)
    requests = submit(scheduler, 1, 1, 1)
    assert shape(step(cache, scheduler)) == [(0, 1, 0, True)] * 3
    assert [request.completion_tokens for request in requests] == [1, 1, 1]


@pytest.mark.parametrize(("max_tokens", "most"), [(1, 0), (2, 1), (5, 4), (9, 8), (30, 8)])
def test_a_draft_never_exceeds_the_tokens_that_are_left(max_tokens, most):
    """Design: k <= min(wanted, tokens left - 1)."""
    cache, scheduler = make_scheduler()
    submit(scheduler, 1, max_tokens=max_tokens)
    assert step(cache, scheduler)[0].most == most


def test_a_draft_never_exceeds_the_room_in_the_context():
    """B93: context 10, prompt of 1: the last token needs no row."""
    cache, scheduler = make_scheduler(context=6)
    submit(scheduler, 1)
    assert [step(cache, scheduler)[0].most for _ in range(5)] == [4, 3, 2, 1, 0]


def test_requests_run_in_order_of_arrival_and_at_most_max_batch_together():
    cache, scheduler = make_scheduler(max_batch=2)
    requests = submit(scheduler, 4, 4, 4, max_tokens=2)
    assert [work.request for work in step(cache, scheduler)] == requests[:2]
    step(cache, scheduler)
    assert [work.request for work in step(cache, scheduler)] == requests[2:]


def test_admission_waits_for_room_for_the_whole_prompt():
    """Two blocks are promised to the first prompt though it has not used them yet."""
    cache, scheduler = make_scheduler(blocks=3, chunk=8)
    first, second = submit(scheduler, 2 * BLOCK - 4, 2 * BLOCK - 4, max_tokens=4)
    while first.finish_reason is None:
        assert all(work.request is first for work in step(cache, scheduler))
    assert step(cache, scheduler)[0].request is second
    assert first.stats.preemptions == second.stats.preemptions == 0


def test_under_pressure_drafts_shrink_before_anyone_gives_way():
    """B39: one block each and none to spare: a draft has the room that is left in its own block."""
    cache, scheduler = make_scheduler(blocks=2)
    first, second = submit(scheduler, BLOCK - 4, BLOCK - 2, max_tokens=4)
    step(cache, scheduler)
    assert [work.most for work in scheduler.schedule()] == [2, 1]  # of 2 and 2 tokens that are left but one
    assert first.stats.preemptions == second.stats.preemptions == 0


def test_then_the_youngest_gives_way_and_comes_back_first():
    """B67: its KV is dropped, its text is not; it is computed again before later requests are let in."""
    cache, scheduler = make_scheduler(blocks=2, max_batch=2)
    first, second, third = submit(scheduler, BLOCK - 1, 5, 1, max_tokens=8)
    step(cache, scheduler)  # both prompts
    step(cache, scheduler)  # the first fills its block
    assert [work.request for work in step(cache, scheduler)] == [first]
    assert second.stats.preemptions == 1
    assert second.completion_tokens == 2
    assert second.kv.length == 0
    assert list(scheduler.waiting) == [second, third]
    while first.finish_reason is None:
        step(cache, scheduler)
    assert shape(step(cache, scheduler)) == [(0, 1, 7, True), (0, 7, 0, True)]
    assert second.completion_tokens == 3


def test_a_full_pool_never_stops_everything():
    """Twenty requests in the room for two: all end, and the pool is whole."""
    cache, scheduler = make_scheduler(blocks=4)
    requests = submit(scheduler, *range(1, 60, 3), max_tokens=40)
    for _ in range(5000):
        if not step(cache, scheduler):
            break
    assert {request.finish_reason for request in requests} == {"length"}
    assert cache.pool.free == 4
