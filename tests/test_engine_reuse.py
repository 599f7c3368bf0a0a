"""The prefix cache in the loop: what is known is not computed again, and a warm text is the cold one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.cache import BLOCK
from outrider.request import Request
from outrider.sampling import SamplingParams
from tests.scripted import (
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
)

LAW = noisy()
DRAFTS = {
    "nothing": nothing,
    "perfect": perfect(LAW),
    "half right": accepted(LAW, lambda request: len(request.tokens) % 4, 5),
    "the same again": constant(3, 3, 3, 3),
    "tree": scattered(LAW, 3),
}
SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=20),
    "coupled": SamplingParams(max_tokens=20, temperature=1, seed=5),
    "penalties": SamplingParams(max_tokens=20, repetition_penalty=1.3, frequency_penalty=0.5),
}
PROMPT = [n * 5 % 16 for n in range(3 * BLOCK)]
PROMPTS = [PROMPT[:7], PROMPT, PROMPT[:BLOCK], PROMPT[: BLOCK + 1], PROMPT[: 2 * BLOCK - 1], [*PROMPT[:50], 1, 1, 1]]


@pytest.mark.parametrize("params", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_a_warm_text_is_the_cold_text(draft, params):
    """B34: prompts that are known in full, in part, to the edge of a block, and one position beside it."""
    cold = [generate(make_engine(ScriptedModel(LAW), draft), prompt, params) for prompt in PROMPTS]
    engine = make_engine(ScriptedModel(LAW), draft)
    for _ in range(2):
        warm = [generate(engine, prompt, params) for prompt in PROMPTS]
        assert [request.output for request in warm] == [request.output for request in cold]
    assert [request.stats.cached for request in warm] == [max(len(prompt) - 2, 0) for prompt in PROMPTS]
    assert not any(request.stats.cached for request in cold)


@pytest.mark.parametrize("acceptance", ["rejection", "block"])
def test_a_warm_request_takes_the_steps_of_a_cold_one(acceptance):
    """Their random numbers are keyed by the step, so a seed's text is a function of the steps."""
    params = SamplingParams(max_tokens=20, temperature=1, seed=5, acceptance=acceptance)
    engine = make_engine(ScriptedModel(LAW), perfect(LAW, 3))
    cold, warm = generate(engine, PROMPT, params), generate(engine, PROMPT, params)
    assert warm.stats.cached == len(PROMPT) - 2
    assert (warm.output, warm.stats.steps, warm.stats.drafted) == (cold.output, cold.stats.steps, cold.stats.drafted)


def test_the_next_turn_computes_only_what_is_new():
    """Prompt and output of the turn before are known but for the last token, which was never computed."""
    engine = make_engine(ScriptedModel(LAW), perfect(LAW, 3))
    first = generate(engine, PROMPT[:50])
    before = len(engine.target.row_counts)
    second = generate(engine, [*first.tokens, 1, 2, 3, 4, 5])
    assert second.stats.cached == len(first.tokens) - 1
    assert engine.target.row_counts[before] == 6
    assert second.output == greedy_text(LAW, second.prompt, 12)


def test_requests_that_run_together_share_their_prompt():
    """As the choices of one request do: the prompt is computed once, and is in the pool once."""
    engine = make_engine(ScriptedModel(LAW), chunk=40)
    requests = [Request(PROMPT, SamplingParams(max_tokens=9, temperature=1, seed=1), choice=n) for n in range(4)]
    run(engine, *requests)
    assert sum(engine.target.row_counts) <= len(PROMPT) + 4 * (BLOCK + 9)
    assert len({tuple(request.output) for request in requests}) == 4
    for request in requests:
        alone = Request(PROMPT, request.params, choice=request.choice)
        run(make_engine(ScriptedModel(LAW)), alone)
        assert request.output == alone.output


def test_requests_that_share_a_prompt_fit_where_each_with_its_own_would_not():
    """Four prompts of three blocks in a pool of eight: what is shared counts once."""
    engine = make_engine(ScriptedModel(LAW), blocks=8)
    generate(engine, PROMPT, SamplingParams(max_tokens=1))
    requests = [Request(PROMPT, SamplingParams(max_tokens=10)) for _ in range(4)]
    for request in requests:
        engine.submit(request)
    engine.step()
    engine.step()
    assert len(engine.scheduler.running) == 4
    assert engine.cache.pool.used == 3 + 4  # the third block is full by now: of its four copies one is left
    drain(engine)


def test_what_a_request_would_share_does_not_count_as_room_if_nobody_holds_it():
    """Idle blocks are part of what is free: they must not be counted twice."""
    engine = make_engine(ScriptedModel(LAW), blocks=4)
    generate(engine, PROMPT, SamplingParams(max_tokens=1))
    other = Request([1] * (2 * BLOCK - 5), SamplingParams(max_tokens=5))
    engine.submit(other)
    engine.step()
    engine.submit(Request(PROMPT, SamplingParams(max_tokens=5)))
    engine.step()
    assert engine.scheduler.running == [other]
    drain(engine)


def test_a_request_that_gives_way_is_resumed_without_computing_all_again():
    engine = make_engine(ScriptedModel(LAW), blocks=6, max_batch=3)
    requests = [Request([n] * (BLOCK + 20), SamplingParams(max_tokens=30)) for n in range(3)]
    run(engine, *requests)
    assert sum(request.stats.preemptions for request in requests) > 0
    assert sum(engine.target.row_counts) < 3 * (BLOCK + 50) + 2 * BLOCK
    assert not any(request.stats.cached for request in requests), "its own KV is not what others spared it"
    for request in requests:
        assert request.output == greedy_text(LAW, request.prompt, 30)


@pytest.mark.parametrize("reuse", [(False, True), (True, False), (False, False)])
def test_a_request_may_neither_use_nor_leave_anything(reuse):
    engine = make_engine(ScriptedModel(LAW))
    for choice in reuse:
        request = Request(PROMPT, SamplingParams(max_tokens=8), reuse=choice)
        run(engine, request)
        assert request.stats.cached == 0
        assert request.output == greedy_text(LAW, PROMPT, 8)
    assert (engine.cache.pool.idle == 0) == (not any(reuse))


def test_a_cancelled_request_leaves_what_it_has_computed():
    engine = make_engine(ScriptedModel(LAW), chunk=40)
    request = Request(PROMPT, SamplingParams(max_tokens=8))
    engine.submit(request)
    engine.step()
    engine.cancel(request)
    drain(engine)
    assert generate(engine, PROMPT).stats.cached == 40


def test_a_failed_request_leaves_nothing_more():
    """A row that is not a number may come from its KV."""
    law = lambda path: LAW(path) * (float("nan") if len(path) == 60 else 1)  # noqa: E731
    engine = make_engine(ScriptedModel(law))
    assert generate(engine, PROMPT[:40], SamplingParams(max_tokens=30)).finish_reason == "error"
    assert engine.cache.pool.idle == 1  # the block that was full before


def test_a_failed_pass_leaves_nothing_to_be_found(monkeypatch):
    engine = make_engine(ScriptedModel(LAW))
    forward = engine.target.forward

    def failing(rows, cache):
        forward(rows, cache)
        raise MemoryError

    engine.submit(Request(PROMPT, SamplingParams(max_tokens=8)))
    with monkeypatch.context() as patch:
        patch.setattr(engine.target, "forward", failing)
        with pytest.raises(MemoryError):
            engine.step()
    assert engine.cache.pool.idle == engine.cache.pool.used == 0
    drain(engine)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 90), st.integers(0, 9), st.booleans()), max_size=7),
    st.sampled_from([5, 8, 64]),
    st.sampled_from([16, 40, 256]),
    st.sampled_from(sorted(DRAFTS)),
    st.integers(1, 4),
)
@settings(max_examples=60)
def test_texts_do_not_depend_on_what_was_known(wishes, blocks, chunk, draft, max_batch):
    """Prompts of three families, in any order, on one engine; the pool at the end is the pool at the start."""
    engine = make_engine(ScriptedModel(LAW), DRAFTS[draft], blocks=blocks, chunk=chunk, max_batch=max_batch)
    families = [PROMPT, [1] * 96, [*PROMPT[:40], *[2] * 60]]
    requests = []
    for family, length, max_tokens, reuse in wishes:
        request = Request(families[family][:length], SamplingParams(max_tokens=1 + max_tokens), reuse=reuse)
        engine.submit(request)
        engine.step()
        requests.append(request)
    drain(engine)
    for request in requests:
        assert request.output == greedy_text(LAW, request.prompt, request.params.max_tokens)


def shared_block_written(cache):
    """A text that departs inside a block goes on in that very block."""

    def copy(sequence, node, common):
        cache.pool.share(node.block)
        sequence.extend([node.block])
        sequence.length = len(sequence.path) * BLOCK + common

    cache._copy = copy


def parent_ignored(cache):
    """A block is known by its own tokens alone."""
    tree = cache.prefixes

    def after(node, keys, place):
        wanted = tuple(keys[place * BLOCK : (place + 1) * BLOCK])
        return next((other for other in tree if other.keys == wanted and len(wanted) == BLOCK), None)

    tree.after = after


def off_by_one(cache):
    """One position more is adopted than is known."""
    adopt = cache.adopt

    def more(sequence, keys):
        count = adopt(sequence, keys)
        if count and count % BLOCK and count < len(keys):
            sequence.length += 1
        return count

    cache.adopt = more


@pytest.mark.parametrize("fault", [shared_block_written, parent_ignored, off_by_one])
def test_a_planted_fault_is_noticed(fault):
    """Negative controls: other text, or a broken invariant."""
    two = [*PROMPT[:BLOCK], *PROMPT[:BLOCK], *PROMPT[:5]]
    three = [*[1] * BLOCK, *PROMPT[:BLOCK], 1, 2]
    engine = make_engine(ScriptedModel(LAW))
    fault(engine.cache)
    try:
        for prompt in [PROMPT[:50], [*PROMPT[:40], 9, 9, 9, 9], PROMPT[:50], two, three]:
            if generate(engine, prompt).output != greedy_text(LAW, prompt, 12):
                return
    except (AssertionError, RuntimeError):
        return
    pytest.fail("the fault went unnoticed")


def test_the_pool_tells_what_is_used_kept_and_free():
    engine = make_engine(ScriptedModel(LAW), blocks=10)
    pool = engine.cache.pool
    request = Request(PROMPT, SamplingParams(max_tokens=8))
    engine.submit(request)
    engine.step()
    assert (pool.used, pool.idle, pool.free) == (3, 0, 7)
    drain(engine)
    assert (pool.used, pool.idle, pool.free) == (0, 4, 10)
