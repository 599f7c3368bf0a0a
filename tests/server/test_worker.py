"""The engine's thread: orders in order, steps that fail, a thread that dies."""

from __future__ import annotations

import queue
import threading

import pytest

from outrider.request import Request
from outrider.sampling import SamplingParams
from outrider.server.worker import Worker
from tests.scripted import ScriptedModel, make_engine, noisy

LAW = noisy()


@pytest.fixture
def told():
    return queue.SimpleQueue()


@pytest.fixture
def engine():
    engine = make_engine(ScriptedModel(LAW))
    yield engine
    assert engine.idle
    engine.check_integrity()
    assert engine.cache.pool.free == engine.cache.pool.size


@pytest.fixture
def worker(engine, told):
    worker = Worker(engine, emitted=told.put, failed=told.put)
    worker.start()
    yield worker
    worker.stop(60)
    assert not worker.alive


def request(count=10):
    return Request([1, 2], SamplingParams(max_tokens=count))


def text_of(told, request):
    """What is emitted of a request, to its end."""
    tokens = []
    while True:
        for emitted in told.get(timeout=60):
            if emitted.request is request:
                tokens += emitted.token_ids
                if emitted.finish_reason:
                    return tokens


def test_each_step_is_told_in_one_call(worker, told):
    requests = [request(), request(20)]
    worker.submit(requests)
    calls = []
    while not (all(each.finish_reason for each in requests) and told.empty()):
        calls.append([emitted.request for emitted in told.get(timeout=60)])
    assert requests in calls
    assert len(calls) <= 21


def test_a_request_may_be_cancelled_right_after_it_was_made(worker, told):
    """B85: the cancel comes second, whatever the engine is doing."""
    mine, other = request(200), request()
    worker.submit([mine, other])
    worker.cancel(mine)
    assert len(text_of(told, other)) == 10
    assert mine.finish_reason == "cancelled"


def test_what_is_left_when_it_is_stopped_is_dropped(worker):
    worker.submit([request(200)])
    worker.stop(60)


def test_a_step_that_fails_once_is_tried_again(worker, engine, told, monkeypatch):
    """A step that raised has committed nothing."""
    forward, failures = engine.target.forward, iter([False, True, False, True])

    def failing(rows, cache):
        if next(failures, False):
            raise OSError("once")
        return forward(rows, cache)

    monkeypatch.setattr(engine.target, "forward", failing)
    mine = request()
    worker.submit([mine])
    text = text_of(told, mine)
    assert mine.finish_reason == "length"
    monkeypatch.undo()
    again = request()
    worker.submit([again])
    assert text_of(told, again) == text


def test_steps_that_fail_twice_let_everybody_down_and_the_thread_goes_on(worker, engine, told, monkeypatch):
    broken = threading.Event()
    forward = engine.target.forward

    def failing(rows, cache):
        if broken.is_set():
            raise OSError("broken")
        return forward(rows, cache)

    monkeypatch.setattr(engine.target, "forward", failing)
    broken.set()
    worker.submit([request(), request()])
    assert str(told.get(timeout=60)) == "broken"
    broken.clear()
    mine = request()
    worker.submit([mine])
    assert len(text_of(told, mine)) == 10


def test_a_failure_is_told_once_however_long_it_lasts(worker, engine, told, monkeypatch):
    """Nobody who comes later is let down for it."""
    calls, step = [], engine.step

    def failing():
        calls.append(None)
        raise OSError("broken")

    monkeypatch.setattr(engine, "step", failing)
    worker.submit([request()])
    assert str(told.get(timeout=60)) == "broken"
    assert len(calls) == 2
    monkeypatch.setattr(engine, "step", step)
    mine = request()
    worker.submit([mine])
    assert len(text_of(told, mine)) == 10
    assert told.empty()


def test_the_death_of_the_thread_is_told(engine, told, monkeypatch):
    worker = Worker(engine, emitted=told.put, failed=told.put)
    monkeypatch.setattr(engine, "submit", lambda request: 1 / 0)
    worker.start()
    worker.submit([request()])
    assert isinstance(told.get(timeout=60), ZeroDivisionError)
    worker.stop(60)
    assert not worker.alive


def test_the_time_of_a_step_is_known_while_it_lasts(worker, engine, told, monkeypatch):
    inside, go = threading.Event(), threading.Event()
    forward = engine.target.forward

    def slow(rows, cache):
        inside.set()
        go.wait(60)
        return forward(rows, cache)

    assert worker.step_time == 0
    monkeypatch.setattr(engine.target, "forward", slow)
    mine = request(1)
    worker.submit([mine])
    assert inside.wait(60)
    assert worker.step_time > 0
    go.set()
    text_of(told, mine)
    worker.stop(60)
    assert worker.step_time == 0
