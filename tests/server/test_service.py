"""Clients that come together, leave, sleep or wait too long, an engine that stalls, and a shutdown amid it all."""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count

import httpx
import pytest

import outrider.engine
from outrider import LLM
from outrider.policy.costs import FREE
from outrider.tokenizer import Tokenizer
from tests.server.test_metrics import figures

LONG = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3000, "temperature": 0}
SHORT = LONG | {"max_tokens": 12}


@pytest.fixture
def small(serve_small):
    """Two texts at a time, and two that may wait."""
    yield serve_small
    serve_small.check_rest()


@pytest.fixture(scope="module")
def serve_small(path, serve_once):
    return serve_once(LLM(path, threads=1, costs=FREE, max_batch=2), queue=2)


@pytest.fixture
def settings(small, monkeypatch):
    """Change a setting for a test: settings(timeout=0.1)."""
    return lambda **values: monkeypatch.setattr(small.service, "settings", replace(small.service.settings, **values))


@contextmanager
def begin(server, **body):
    """The lines of a stream that has begun to speak."""
    with server.http.stream("POST", "/v1/chat/completions", json=LONG | body | {"stream": True}) as response:
        assert response.status_code == 200
        lines = (line for line in response.iter_lines() if line)
        yield chain([next(lines)], lines)


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def last_event(lines):
    """What comes before the end mark."""
    *_, event, end = lines
    assert end == "data: [DONE]"
    return json.loads(event.removeprefix("data: "))


@pytest.mark.parametrize("clients", [2, 4, 8])
def test_texts_are_the_same_however_many_clients_there_are(server, clients):
    """B81, B116: greedy answers are those that a client alone gets, with drafts of every length beside each other."""
    bodies = [
        SHORT | {"messages": [{"role": "user", "content": f"Number {i}"}], "max_tokens": 20 + i} for i in range(clients)
    ]
    alone = [server.post(**body).json()["choices"] for body in bodies]
    barrier = threading.Barrier(clients)

    def ask(number):
        barrier.wait()
        return server.post(**bodies[number], speculation=number).json()["choices"]

    with ThreadPoolExecutor(clients) as pool:
        assert list(pool.map(ask, range(clients))) == alone


def test_n_texts_of_one_client_draft_beside_those_of_another(server):
    """B134: asking for two texts turns nothing off for anybody."""
    body = SHORT | {"max_tokens": 300, "return_sources": True}
    alone = server.post(**body).json()["choices"][0]
    with ThreadPoolExecutor(2) as pool:
        two, one = pool.map(lambda extra: server.post(**body, **extra).json()["choices"], [{"n": 2}, {}])
    for choice in (*two, *one):
        assert choice["message"] == alone["message"]
        assert "accepted" in choice["sources"]


def test_a_full_queue_says_when_to_come_again(small):
    with begin(small), begin(small), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(small.post, **SHORT)
        wait_for(lambda: small.service.open_texts == 3)
        response = small.post(**SHORT, n=2)
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "queue_full"
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert 'outrider:http_errors_total{status="429"}' in small.get("/metrics").text
        for generation in tuple(small.service._generations):
            if generation.requests[0].params.max_tokens == 3000:
                small.service.close(generation)
        assert waiting.result().status_code == 200


def test_the_gauges_tell_who_is_served_and_who_waits(small):
    with begin(small), begin(small), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(small.post, **SHORT)
        wait_for(lambda: small.llm.engine.scheduler.waiting)
        values = figures(small)
        assert values["outrider:num_requests_running"] == 2
        assert values["outrider:num_requests_waiting"] == 1
        assert 0 < values["outrider:kv_cache_usage_perc"] < 1
        small.service._let_down("enough")
        assert waiting.result().status_code == 500


def test_what_could_never_fit_is_not_told_to_come_again(small):
    """429 would make a client wait and ask for ever."""
    response = small.post(**SHORT, n=5)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "n"
    assert "retry-after" not in response.headers


def test_a_request_that_fails_while_its_prompt_is_read_is_not_begun(small, monkeypatch):
    """It has no place any more, so nobody would ever end its text."""
    reading, go = threading.Event(), threading.Event()
    render = Tokenizer.render_chat

    def slow(*args):
        reading.set()
        go.wait(60)
        return render(*args)

    monkeypatch.setattr(Tokenizer, "render_chat", slow)
    with ThreadPoolExecutor(1) as pool:
        response = pool.submit(small.post, **LONG)
        assert reading.wait(60)
        small.service._failed(RuntimeError("broken"))
        wait_for(lambda: not small.service.open_texts)
        go.set()
        assert "broken" in response.result().json()["error"]["message"]
    assert not small.service._owners
    assert small.llm.engine.idle


def test_a_request_that_is_refused_gives_its_place_back(small):
    for _ in range(5):
        assert small.post(**LONG, logit_bias={"999999": 1}).status_code == 400
    assert small.service.open_texts == 0


def test_those_who_wait_are_served_in_turn(small):
    """First come, first served."""
    waiting = small.llm.engine.scheduler.waiting
    with ThreadPoolExecutor(2) as pool:
        with begin(small), begin(small):
            later = []
            for number in range(2):
                later.append(pool.submit(small.post, **SHORT | {"max_tokens": 30}))
                wait_for(lambda number=number: len(waiting) == number + 1)
            first, second = waiting
        assert [each.result().status_code for each in later] == [200, 200]
    assert first.timings.submitted < second.timings.submitted
    assert first.timings.first_token <= second.timings.first_token


class TestDisconnect:
    """A client that goes away costs nothing more."""

    def test_from_a_stream(self, small):
        with begin(small):
            pass
        small.check_rest()
        assert 'finished_reason="cancelled"' in small.get("/metrics").text

    def test_before_a_whole_answer(self, small):
        with pytest.raises(httpx.ReadTimeout):
            small.http.post("/v1/chat/completions", json=LONG, timeout=0.1)
        small.check_rest()

    def test_while_it_waits(self, small):
        with begin(small), begin(small):
            with pytest.raises(httpx.ReadTimeout):
                small.http.post("/v1/chat/completions", json=LONG, timeout=0.1)
            wait_for(lambda: not small.llm.engine.scheduler.waiting)

    def test_of_one_of_three_disturbs_nobody(self, server):
        """B86."""
        alone = server.post(**SHORT, max_completion_tokens=12).json()["choices"]
        with ThreadPoolExecutor(2) as pool:
            with begin(server):
                others = [pool.submit(lambda: server.post(**SHORT).json()["choices"]) for _ in range(2)]
            assert [other.result() for other in others] == [alone, alone]

    def test_within_a_step(self, small):
        """No more than the step that runs, and the one that is being told of."""
        with begin(small):
            (request,) = small.llm.engine.scheduler.running
            small.service.close(next(iter(small.service._generations)))  # as the watcher of the connection does
            begun = request.stats.steps
            small.wait_until_idle()
        assert request.stats.steps <= begun + 2


class TestSlowReader:
    """One that does not read takes no one's time."""

    def connect(self, server):
        """A client with a small window that asks for half a megabyte and reads nothing."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        data = json.dumps(LONG | {"max_tokens": 300} | {"stream": True, "logprobs": True, "top_logprobs": 20}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        client.sendall(head.encode() + data)
        return client

    def wait_until_it_is_felt(self, server):
        wait_for(lambda: any(len(each._pending) > 20 for each in server.service._generations))

    def read(self, client):
        """All that comes until the connection ends."""
        client.settimeout(60)
        return b"".join(iter(lambda: client.recv(65536), b""))

    def test_the_engine_and_others_go_on(self, small):
        with self.connect(small) as client:
            self.wait_until_it_is_felt(small)
            assert small.post(**SHORT).status_code == 200
            wait_for(lambda: small.llm.engine.idle)  # its text is finished, though nobody has read it
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += client.recv(65536)
        assert received.count(b'"finish_reason":"length"') == 1
        assert received.count(b'"top_logprobs"') >= 300

    def test_it_loses_its_text_if_it_goes_on(self, small, settings):
        settings(stall=1.0)
        with self.connect(small) as client:
            self.wait_until_it_is_felt(small)
            small.wait_until_idle()
            received = self.read(client)
        assert received.startswith(b"HTTP/1.1 200")
        assert b"[DONE]" not in received, "what is left is not sent, and the connection ends"

    def test_it_loses_its_place_when_its_time_is_over(self, small, settings):
        settings(timeout=0.5)
        with self.connect(small) as client:
            self.wait_until_it_is_felt(small)
            wait_for(lambda: small.llm.engine.idle)  # nothing is left to be written, only to be read
            small.wait_until_idle()
            client.settimeout(60)
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += client.recv(65536)
        assert b"timeout_error" in received
        assert received.count(b'"top_logprobs"') < 300

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the connection waits for its client")
    def test_it_loses_its_connection_even_if_it_never_reads(self, serve, path):
        server = serve(LLM(path, threads=1, costs=FREE), stall=1.0)
        with self.connect(server):
            self.wait_until_it_is_felt(server)
            wait_for(lambda: not server.server.server_state.connections)


def test_a_request_that_takes_too_long_is_ended(small, settings):
    settings(timeout=0.3)
    response = small.post(**LONG)
    assert response.status_code == 504
    assert "0.3 seconds" in response.json()["error"]["message"]
    with begin(small) as lines:
        assert last_event(lines)["error"]["type"] == "timeout_error"


def test_a_stream_that_fails_ends_with_an_error_and_the_end_mark(small, monkeypatch):
    """B116; OpenAI's client raises it."""
    engine = small.llm.engine
    step, steps = engine.step, count()

    def failing():
        if next(steps) > 20:
            raise OSError("broken")
        return step()

    monkeypatch.setattr(engine, "step", failing)
    with begin(small) as lines:
        assert last_event(lines)["error"]["type"] == "server_error"
    response = small.post(**SHORT)
    assert response.status_code == 500
    assert "broken" in response.json()["error"]["message"]
    monkeypatch.undo()
    assert small.post(**SHORT).status_code == 200


def test_a_text_that_fails_fails_alone(small, monkeypatch):
    """NaN in the logits of one request, say."""
    original = outrider.engine._run

    def failing(request, *rest):
        if request.params.max_tokens == 7:
            raise ValueError("not a number")
        return original(request, *rest)

    monkeypatch.setattr(outrider.engine, "_run", failing)
    with ThreadPoolExecutor(2) as pool:
        bad, good = pool.map(lambda limit: small.post(**LONG | {"max_tokens": limit}), [7, 50])
    assert (bad.status_code, good.status_code) == (500, 200)


def test_a_step_that_does_not_end_is_noticed(small, settings, monkeypatch):
    """B116: those who wait for it are told, new ones are refused, and all is well once it ends."""
    engine = small.llm.engine
    step, inside, go = engine.step, threading.Event(), threading.Event()

    def blocking():
        inside.set()
        go.wait(60)
        return step()

    settings(stall=0.3)
    monkeypatch.setattr(engine, "step", blocking)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(small.post, **SHORT)
        assert inside.wait(60)
        response = waiting.result()
    assert response.status_code == 503
    assert "has not finished a step" in response.json()["error"]["message"]
    health = small.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "stalled")
    assert small.post(**SHORT).status_code == 503
    monkeypatch.undo()
    go.set()
    wait_for(lambda: small.get("/health").status_code == 200)
    assert small.post(**SHORT).status_code == 200


class TestShutdown:
    """What is being written is finished within the time of grace, or ended with a word."""

    @pytest.fixture
    def own(self, serve, path):
        return lambda **settings: serve(LLM(path, threads=1, costs=FREE), **settings)

    def test_it_waits_for_those_who_are_in(self, own):
        server = own(grace=60.0)
        with begin(server, max_tokens=300) as lines:
            server.server.handle_exit(signal.SIGTERM, None)
            last = last_event(lines)
        assert last["choices"][0]["finish_reason"] == "length"

    def test_but_not_for_ever(self, own):
        server = own(grace=0.3)
        with begin(server, ignore_eos=True) as lines:
            server.server.handle_exit(signal.SIGTERM, None)
            last = last_event(lines)
        assert last["error"]["message"] == "the server is shutting down"
        assert last["error"]["type"] == "server_error"

    def test_however_often_it_is_told(self, own):
        server = own(grace=60.0)
        server.service.drain()
        ends = server.service._ends
        server.service.drain()
        assert server.service._ends == ends

    def test_and_nobody_is_let_in(self, own):
        server = own(grace=60.0)
        with begin(server, max_tokens=300):
            server.service.drain()  # the listener itself is closed a moment later
            refused = server.post(**SHORT)
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
            assert server.get("/health").json()["status"] == "stopping"


def test_without_room_for_all_texts_some_are_computed_again_and_none_fails(path, serve):
    """KV exhaustion ends in preemption, never in an error, and changes no text."""
    server = serve(LLM(path, threads=1, costs=FREE, kv_tokens=256, context_length=250, max_batch=4))
    bodies = [LONG | {"messages": [{"role": "user", "content": f"Number {i}"}], "max_tokens": 150} for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = [answer.json() for answer in pool.map(lambda body: server.post(**body), bodies)]
    assert "outrider:num_preemptions_total 0.0" not in server.get("/metrics").text
    assert [answer["choices"] for answer in answers] == [server.post(**body).json()["choices"] for body in bodies]
