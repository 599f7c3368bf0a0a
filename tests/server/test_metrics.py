"""/metrics: counted from what was committed, whatever the drafts did."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from outrider.types import DECLINED, EMPTY
from tests.scripted import accepted, script

VOCABULARY, END = 269, 268
TEXT = script([*b"some text that goes on and on, some"], VOCABULARY)


def figures(server):
    """Names with their labels, and values; only what is counted."""
    lines = [line for line in server.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


@pytest.fixture
def counted(scripted):
    """What a request adds: counted(law, draft, max_tokens=...)."""

    def count(law, draft, **body):
        server = scripted(law, draft)
        before = figures(server)
        response = server.post("/v1/completions", prompt=[1, 2], temperature=0, **body)
        assert response.status_code == 200
        after = figures(server)
        return {
            name.removeprefix("outrider:"): value - before.get(name, 0)
            for name, value in after.items()
            if value != before.get(name, 0) and "_bucket" not in name and "_created" not in name
        }

    return count


def test_a_bonus_token_is_no_accepted_one(counted):
    """B126: T as its own draft, three tokens a step, ten steps: 30, 30 and 40; the rate is 1 and not 1.33."""
    added = counted(TEXT, accepted(TEXT, lambda request: 3, 3), max_tokens=41)
    assert added['spec_decode_num_drafts_total{drafter="scripted"}'] == 10
    assert added['spec_decode_num_draft_tokens_total{drafter="scripted"}'] == 30
    assert added['spec_decode_num_accepted_tokens_total{drafter="scripted"}'] == 30
    assert added["generation_tokens_total"] == 41
    assert [added[f'spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}}'] for i in range(3)] == [10] * 3
    assert (added["tokens_per_step_count"], added["tokens_per_step_sum"]) == (11, 41)
    assert added['spec_decode_num_skipped_total{reason="no_room"}'] == 1  # the step that ends the prompt


def test_what_counts_as_drafted_was_sent_to_verification(counted):
    """B127, B129: 5, 2, 0 and 1 drafted tokens make 8, not four times the most."""
    lengths = iter([5, 2, 0, 1])

    def draft(request):
        length = next(lengths, 0)
        return accepted(TEXT, lambda request: 1, length)(request) if length else EMPTY

    added = counted(TEXT, draft, max_tokens=12)
    assert added['spec_decode_num_draft_tokens_total{drafter="scripted"}'] == 8
    assert added['spec_decode_num_drafts_total{drafter="scripted"}'] == 3
    assert added['spec_decode_num_accepted_tokens_total{drafter="scripted"}'] == 3
    assert added['spec_decode_num_accepted_tokens_per_pos_total{position="0"}'] == 3
    assert added['spec_decode_num_skipped_total{reason="nothing_proposed"}'] >= 1


def test_drafts_past_the_end_of_a_text_are_not_accepted(counted):
    """B127: an end in the last round."""
    law = script([*b"ab", END], VOCABULARY, prompt_length=2)
    added = counted(law, accepted(law, lambda request: 8, 8), max_tokens=40)
    assert added["generation_tokens_total"] == 3
    assert added['spec_decode_num_accepted_tokens_total{drafter="scripted"}'] == 2
    assert added['request_success_total{finished_reason="stop"}'] == 1


def test_a_request_that_wants_no_drafts_is_skipped_for_that_reason(counted):
    added = counted(TEXT, accepted(TEXT, lambda request: 3, 3), max_tokens=10, speculation="off")
    assert added['spec_decode_num_skipped_total{reason="off"}'] == 10
    assert not any("draft" in name for name in added)


def test_drafts_that_are_not_there_are_told_from_those_that_would_not_pay(counted):
    """What a policy cuts as a whole, and what it does not ask for, is no want of drafts."""
    answers = iter([EMPTY, DECLINED, EMPTY, DECLINED, DECLINED])
    added = counted(TEXT, lambda request: next(answers, EMPTY), max_tokens=7)
    skipped = {name: value for name, value in added.items() if "skipped" in name}
    assert skipped == {
        'spec_decode_num_skipped_total{reason="no_room"}': 2,  # the first token and the last
        'spec_decode_num_skipped_total{reason="nothing_proposed"}': 2,
        'spec_decode_num_skipped_total{reason="would_not_pay"}': 3,
    }


def test_times_are_taken_once_for_each_text(counted):
    added = counted(TEXT, accepted(TEXT, lambda request: 3, 3), max_tokens=9, n=2)
    assert added["time_to_first_token_seconds_count"] == added["e2e_request_latency_seconds_count"] == 2
    assert added["inter_token_latency_seconds_count"] == 4
    assert added["prompt_tokens_total"] == 4
    assert 0 < added["time_to_first_token_seconds_sum"] <= added["e2e_request_latency_seconds_sum"] < 120


def test_gauges_are_at_rest_when_nobody_is_served(server):
    values = figures(server)
    for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert values[f"outrider:{gauge}"] == 0


def test_what_the_prefix_cache_had_is_counted(server):
    body = {
        "prompt": "A text that is long enough to fill some blocks of the cache, told but once. " * 3,
        "max_tokens": 1,
    }
    cached, counted = [], [figures(server)["outrider:prefix_cache_hits_total"]]
    for _ in range(2):
        usage = server.post("/v1/completions", **body).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        counted.append(figures(server)["outrider:prefix_cache_hits_total"])
    assert [after - before for before, after in pairwise(counted)] == cached
    assert cached[1] > 100


def test_prometheus_can_read_it(server):
    text = server.get("/metrics").text
    assert all(
        re.fullmatch(r'[a-z0-9:_]+(\{([a-z_]+="[^"]*",?)+\})? \S+', line)
        for line in text.splitlines()
        if line[0] != "#"
    )
