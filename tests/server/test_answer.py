"""How an answer is put together: others are served meanwhile."""

from __future__ import annotations

import asyncio
import json

import pytest

from outrider import SamplingParams
from outrider.request import Emitted, Piece, Request
from outrider.sampling import Logprobs
from outrider.server.answer import ChatAnswer
from outrider.server.generation import AT_ONCE, Generation
from outrider.server.schemas import ChatRequest

STEPS = 1000
TOP = tuple((token, -1.5) for token in range(97, 117))


@pytest.fixture
def long(library):
    """An answer of many tokens, each with all the log-probabilities that can be had, and what the steps added to it."""
    request = Request([1], SamplingParams(logprobs=20))
    request.logprobs += [Logprobs(-0.5, TOP)] * STEPS
    body = ChatRequest(messages=[{"role": "user", "content": "Hi"}], logprobs=True, top_logprobs=20)
    emitted = [Emitted(request, (Piece("a", "plain"),), (97,), None, ("plain",)) for _ in range(STEPS)]
    emitted[-1].finish_reason = "length"
    return ChatAnswer(body, "tiny", library.tokenizer, [request]), emitted


def turns_during(work):
    """What the work returns, and how often others had the event loop meanwhile."""

    async def count():
        turns = 0

        async def others():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        result = await work()
        task.cancel()
        return result, turns

    return asyncio.run(count())


def test_a_whole_answer_is_encoded_little_by_little(long):
    answer, emitted = long
    whole, turns = turns_during(lambda: answer.whole(emitted))
    assert turns >= STEPS // AT_ONCE
    (choice,) = json.loads(whole)["choices"]
    assert choice["message"]["content"] == "a" * STEPS
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["refusal"] is None
    assert [len(entry["top_logprobs"]) for entry in choice["logprobs"]["content"]] == [20] * STEPS


def test_a_stream_that_has_fallen_behind_is_too(long):
    answer, emitted = long

    async def written():
        generation = Generation(1, 60.0)
        for each in emitted:
            generation.add(each)
        return [answer.events(additions) async for additions in generation.updates()]

    pieces, turns = turns_during(written)
    assert turns >= STEPS // AT_ONCE
    assert b"".join(pieces).count(b'"top_logprobs"') == STEPS
