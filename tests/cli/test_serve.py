"""`outrider serve` as a process: what it says, whom it refuses, how it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys

import httpx
import pytest

from outrider.server.guard import is_loopback


@pytest.fixture
def server(process):
    """Start a server: its process, and its address as it tells it."""

    def start(*args, **options):
        running = process("serve", "--port", 0, *args, **options)
        for line in map(bytes.decode, running.stderr):  # on a slow machine it says first that it measures it
            if found := re.search(r"http://\S+", line):
                return running, found[0], line
        raise AssertionError("the server has ended")

    return start


def test_it_says_what_is_served_and_where(server):
    _, url, line = server()
    assert "tiny.gguf" in line
    assert "100000 tokens of context, speculation auto by grammar, prediction, suffix (passes of 2, 4, 8 rows" in line
    assert url.startswith("http://127.0.0.1:")
    assert httpx.get(f"{url}/health").json()["model"] == "tiny"
    body = {"prompt": "Hello", "max_tokens": 3}
    assert httpx.post(f"{url}/v1/completions", json=body).json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_it_without_a_traceback(server, sent, code):
    running, url, _ = server()
    httpx.get(f"{url}/health")
    running.send_signal(sent)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (code, b"", b"")


def test_what_is_being_written_is_finished_first(server):
    running, url, _ = server()
    body = {"prompt": "Hello", "max_tokens": 2000, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        running.send_signal(signal.SIGTERM)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    running.wait(60)


def test_the_flags_reach_the_server(server):
    """B123: none is parsed and then forgotten."""
    env = {"OUTRIDER_API_KEY": "sesame"}
    flags = ["--queue", 0, "--max-batch", 1, "--context-length", 500, "--speculation", "off", "--timeout", 0.5]
    _, url, line = server(*flags, env=env)
    assert "500 tokens of context, speculation off" in line
    assert httpx.get(f"{url}/v1/models").status_code == 401
    health = httpx.get(f"{url}/health").json()
    assert (health["context_length"], health["speculation"], health["drafters"]) == (500, "off", [])
    headers = {"authorization": "Bearer sesame"}
    body = {"prompt": "Hello", "max_tokens": 400, "n": 2}
    refused = httpx.post(f"{url}/v1/completions", json=body, headers=headers)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
    assert "at most 1 at once" in refused.json()["error"]["message"]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.1", "::", "example.com"])
def test_an_address_that_others_can_reach_needs_a_key(outrider, host):
    result = outrider("serve", "--host", host)
    assert result.exit_code == 1
    assert "OUTRIDER_API_KEY" in result.stderr


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.1", False), ("", False), ("localhost.example.com", False)],
)  # fmt: skip
def test_what_counts_as_loopback(host, loopback):
    assert is_loopback(host) is loopback


@pytest.mark.parametrize("key", ["", " ", "a\n", "ké"])
def test_a_key_that_no_header_can_carry_is_refused(outrider, key):
    result = outrider("serve", "--host", "0.0.0.0", "--api-key", key)
    assert result.exit_code == 1
    assert "key" in result.stderr


def test_a_port_that_is_taken_is_one_line(outrider):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = outrider("serve", "--port", port)
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1, port {port}" in result.stderr


def test_without_its_packages_it_says_how_to_get_them(outrider, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("outrider.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = outrider("serve")
    assert result.exit_code == 1
    assert "pip install 'outrider[serve]'" in result.stderr


def test_the_model_may_be_given_as_an_argument(outrider):
    result = outrider("serve", "--port", 0, "nonsense.gguf")
    assert result.exit_code == 1
    assert "nonsense.gguf" in result.stderr


def test_its_key_is_not_told(server):
    running, url, line = server(env={"OUTRIDER_API_KEY": "open-sesame"})
    answer = httpx.get(f"{url}/v1/models", headers={"authorization": "Bearer x"})
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=60)
    assert "open-sesame" not in line + err.decode() + json.dumps(answer.json())
