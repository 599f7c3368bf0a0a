"""A request may limit its own drafts; with none at all, no drafter hears of it, and its text is the same."""

from __future__ import annotations

import pytest

from outrider.errors import RequestError
from outrider.request import Request
from outrider.sampling import SamplingParams
from outrider.speculation import Speculation
from tests.scripted import ScriptedDrafter, ScriptedModel, greedy_text, make_engine, noisy, perfect, run

LAW = noisy()
PARAMS = SamplingParams(max_tokens=20)


def drafted(*limits, engine_limit=8):
    """Longest proposal of each request, when requests with those limits run together; their texts are checked."""
    drafter = ScriptedDrafter(perfect(LAW, 8))
    model = ScriptedModel(LAW)
    requests = [Request([1, 2], PARAMS, speculation=Speculation(length=limit)) for limit in limits]
    run(make_engine(model, drafter, max_draft=engine_limit), *requests)
    assert all(request.output == greedy_text(LAW, [1, 2], 20) for request in requests)
    return requests, drafter


@pytest.mark.parametrize(("limit", "steps"), [(None, 4), (8, 4), (3, 6), (1, 11), (0, 20)])
def test_a_request_takes_at_most_its_own_share_and_the_engines(limit, steps):
    """The first step follows the prompt and drafts nothing; a perfect draft of k is k + 1 tokens."""
    (request,), _ = drafted(limit)
    assert request.stats.steps == steps


def test_a_request_of_none_is_plain_beside_others_that_draft():
    (plain, speculative), drafter = drafted(0, None)
    assert (plain.stats.drafted, plain.stats.steps, plain.drafters) == (0, 20, [])
    assert speculative.stats.drafted > 0
    assert {observation.id for observation in drafter.observed} == {speculative.id}


@pytest.mark.parametrize("engine_limit", [0, 8, 16])
def test_more_than_the_engine_drafts_is_refused(engine_limit):
    drafted(engine_limit, engine_limit=engine_limit)
    expected = f"speculation={engine_limit + 1} is not possible; allowed: at most {engine_limit} drafted tokens"
    with pytest.raises(RequestError, match=expected) as caught:
        drafted(engine_limit + 1, engine_limit=engine_limit)
    assert caught.value.field == "speculation"


def test_a_negative_limit_is_refused():
    with pytest.raises(RequestError, match="speculation=-1"):
        drafted(-1)
