"""The default model with far too little room for its clients: texts are computed again, and none fails or changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from outrider import LLM
from outrider.policy.costs import FREE
from outrider.scheduler import Scheduler
from tests.server.test_metrics import figures
from tests.tiny import default_model

FILE = default_model()

pytestmark = pytest.mark.skipif(FILE is None, reason="needs the default model")

SUBJECTS = ("bicycles", "bread", "rivers", "clocks", "Latin", "whales", "paper", "volcanoes")
LENGTH = 110
POOL = 320
"""Positions, for eight texts of some 145 each: two of them fit."""


def load(**options):
    return LLM(FILE, threads=1, costs=FREE, context_length=256, max_batch=len(SUBJECTS), **options)


def ask(server, subject):
    messages = [{"role": "user", "content": f"Write a long text about {subject}."}]
    return server.post(messages=messages, max_tokens=LENGTH, temperature=0, ignore_eos=True)


def all_at_once(server):
    """The answers, and how many of the texts were pushed out."""
    with ThreadPoolExecutor(len(SUBJECTS)) as pool:
        answers = list(pool.map(lambda subject: ask(server, subject), SUBJECTS))
    server.wait_until_idle()
    return answers, figures(server)["outrider:num_preemptions_total"]


def texts(answers):
    return [answer.json()["choices"][0]["message"]["content"] for answer in answers]


@pytest.fixture(scope="module")
def expected(serve_once):
    """What they are told where there is room for all."""
    server = serve_once(load(kv_tokens=256 * len(SUBJECTS)))
    answers, preemptions = all_at_once(server)
    assert preemptions == 0
    return texts(answers)


def test_without_room_for_all_texts_none_fails_and_none_changes(serve, expected):
    server = serve(load(kv_tokens=POOL))
    answers, preemptions = all_at_once(server)
    assert [answer.status_code for answer in answers] == [200] * len(SUBJECTS)
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [LENGTH] * len(SUBJECTS)
    assert texts(answers) == expected
    assert len(set(expected)) == len(SUBJECTS)
    assert preemptions >= 2, "how many depends on when they come"
    assert figures(server)["outrider:kv_cache_usage_perc"] == 0


def nobody_gives_way(monkeypatch):
    monkeypatch.setattr(Scheduler, "_preempt", lambda self: None)


def a_token_is_lost(monkeypatch):
    """Whoever gives way comes back with another last token."""
    preempt = Scheduler._preempt

    def losing(self):
        before = list(self.running)
        preempt(self)
        for request in before:
            if request not in self.running:
                request.tokens[-1] = request.tokens[0]

    monkeypatch.setattr(Scheduler, "_preempt", losing)


@pytest.mark.parametrize("fault", [nobody_gives_way, a_token_is_lost])
def test_a_planted_fault_is_noticed(serve, expected, monkeypatch, fault):
    """Negative controls: an error, or another text."""
    fault(monkeypatch)
    server = serve(load(kv_tokens=POOL))
    answers, _ = all_at_once(server)
    assert any(answer.status_code != 200 for answer in answers) or texts(answers) != expected
    monkeypatch.undo()
