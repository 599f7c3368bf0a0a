"""A tiny model behind a real server on a port of its own, and what must hold when a test has left it."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import httpx
import openai
import pytest

from outrider import LLM
from outrider.policy.costs import FREE
from outrider.server import run
from outrider.server.service import Service
from outrider.server.settings import Settings
from tests.scripted import ScriptedModel, make_engine, noisy, nothing
from tests.tiny import tiny_llama


@dataclass(frozen=True)
class Running:
    """A server that listens on `url`."""

    llm: LLM
    url: str
    service: Service
    server: run.Server
    http: httpx.Client

    def openai(self, **options) -> openai.OpenAI:
        """OpenAI's own client, which must not hide an error by asking again."""
        options = {"api_key": "none", "max_retries": 0, "timeout": 120} | options
        return openai.OpenAI(base_url=f"{self.url}/v1", **options)

    def post(self, path="/v1/chat/completions", **body) -> httpx.Response:
        return self.http.post(path, json=body)

    def get(self, path) -> httpx.Response:
        return self.http.get(path)

    def wait_until_idle(self) -> None:
        """Until nobody is served any more."""
        end = time.monotonic() + 60  # the machine may be busy
        while not (self.llm.engine.idle and not self.service.open_texts):
            assert time.monotonic() < end, "the server does not come to rest"
            time.sleep(0.005)

    def check_rest(self) -> None:
        """What must hold when nobody is served: the idle pool is the pool at start, and nothing is left behind."""
        self.wait_until_idle()
        engine = self.llm.engine
        engine.check_integrity()
        assert engine.cache.pool.used == 0, "all KV is free again"
        assert not engine.drafter.known


@contextmanager
def serving(llm: LLM, **settings) -> Iterator[Running]:
    """A server in this process; it is shut down as by a signal."""
    listener = run.listen("127.0.0.1", 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)  # a slow reader is soon felt
    server = run.Server(llm, Settings(**{"stall": 600.0} | settings))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.002)
    try:
        url = run.url(listener)
        with httpx.Client(base_url=url, timeout=120) as http:
            yield Running(llm, url, server.service, server, http)
    finally:
        server.handle_exit(signal.SIGTERM, None)
        thread.join(60)
        assert not thread.is_alive(), "the server does not end"


@pytest.fixture(scope="session")
def path(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("server") / "tiny.gguf", seed=1, context=4096)


@pytest.fixture(scope="session")
def llm(path):
    """A model whose engine checks its invariants after every step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTRIDER_DEBUG", "1")
        return LLM(path, threads=1, costs=FREE)


@pytest.fixture(scope="session")
def library(path):
    """The same model without a server, decoding plainly: what its texts are."""
    return LLM(path, speculation="off", threads=1, costs=FREE)


@pytest.fixture(scope="session")
def session_server(llm):
    with serving(llm) as running:
        yield running


@pytest.fixture
def server(session_server):
    """A server with ordinary settings, shared by tests, each of which leaves it at rest."""
    yield session_server
    session_server.check_rest()


@pytest.fixture(scope="session")
def session_client(session_server):
    with session_server.openai() as client:
        yield client


@pytest.fixture
def client(server, session_client):
    return session_client


@pytest.fixture(scope="module")
def serve_once(path):
    """Servers with other settings, for the tests of a module: serve_once(api_key="secret")."""
    with ExitStack() as stack:

        def serve(llm=None, **settings) -> Running:
            running = stack.enter_context(serving(llm or LLM(path, threads=1, costs=FREE), **settings))
            stack.callback(running.check_rest)
            return running

        yield serve


@pytest.fixture(scope="module")
def scripted_server(path, serve_once):
    llm = LLM(path, threads=1, costs=FREE)
    model = ScriptedModel(noisy(), vocabulary=llm.tokenizer.vocabulary_size, context=1024)
    llm.engine = make_engine(model, nothing, letters=llm.tokenizer, eos_ids=llm.tokenizer.eos_ids, max_batch=2)
    return serve_once(llm)


@pytest.fixture
def scripted(scripted_server):
    """A server whose model writes, and whose drafter drafts, as told: scripted(law, draft)."""
    engine = scripted_server.llm.engine

    def arrange(law, draft=nothing) -> Running:
        engine.target.law = law
        engine.drafter._drafter.draft = draft
        return scripted_server

    yield arrange
    scripted_server.check_rest()


@pytest.fixture
def serve():
    """A server for one test: serve(llm, grace=1)."""
    with ExitStack() as stack:

        def start(llm, **settings) -> Running:
            running = stack.enter_context(serving(llm, **settings))
            stack.callback(running.check_rest)
            return running

        yield start
