"""Clients as they are: many at once, some of whom leave, send nonsense, or read slowly. For a test and for a script."""

from __future__ import annotations

import json
import random
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx

WORDS = ["the", "a", "server", "client", "draft", "token", "step", "text", "model", "of", "and", "to", "in"]


def soak(url: str, model: str, requests: int, *, clients: int = 8, seed: int = 0, longest: int = 200) -> Counter[str]:
    """Send so many requests, some of each kind; returns how they went. Raises AssertionError at the first answer that
    is wrong, or an error that its client did not cause."""
    numbers = iter(range(requests))
    outcomes: Counter[str] = Counter()
    expected: dict[str, str] = {}

    def client(name: int) -> None:
        with httpx.Client(base_url=url, timeout=120) as http:
            for number in numbers:
                rng = random.Random(f"{seed} {number}")
                kind = rng.choices(KINDS, [8, 8, 4, 4, 1, 1, 4])[0]
                outcomes[kind(http, model, rng, longest, expected)] += 1

    with ThreadPoolExecutor(clients) as pool:
        for done in [pool.submit(client, name) for name in range(clients)]:
            done.result()
    return outcomes


def body_of(model: str, rng: random.Random, longest: int) -> dict[str, object]:
    """One of a few prompts, greedy, so that the same one is asked again, or with all sorts of parameters."""
    prompt = " ".join(random.Random(rng.randrange(12)).choices(WORDS, k=20))
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": rng.choice([1, 7, 40, longest]),
        "temperature": 0,
        "speculation": rng.choice(["auto", "off", 1, 3]),
    }
    if rng.random() < 0.3:
        body |= {"temperature": 1, "n": rng.randint(1, 3), "top_p": 0.9, "presence_penalty": 0.5}
    if rng.random() < 0.2:
        body |= {"logprobs": True, "top_logprobs": rng.randint(0, 20)}
    if rng.random() < 0.2:
        body |= {"prediction": {"type": "content", "content": prompt}}
    return body


def _key(body):
    return json.dumps([body["messages"], body["max_tokens"]])


def _check(body, text, expected):
    """The same greedy request has the same text, whoever is beside it and whatever is drafted."""
    if body["temperature"] == 0:
        assert expected.setdefault(_key(body), text) == text, "a greedy text has changed"


def whole(http, model, rng, longest, expected):
    body = body_of(model, rng, longest)
    response = http.post("/v1/chat/completions", json=body)
    if response.status_code == 429:
        return "429"
    assert response.status_code == 200, response.text
    answer = response.json()
    assert len(answer["choices"]) == body.get("n", 1)
    _check(body, answer["choices"][0]["message"]["content"], expected)
    return "whole"


def stream(http, model, rng, longest, expected):
    body = body_of(model, rng, longest)
    with http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as response:
        if response.status_code == 429:
            return "429"
        assert response.status_code == 200
        lines = [line for line in response.iter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    choices = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
    assert sum(choice["finish_reason"] is not None for choice in choices) == body.get("n", 1)
    _check(body, "".join(choice["delta"].get("content", "") for choice in choices if choice["index"] == 0), expected)
    return "stream"


def leave_stream(http, model, rng, longest, expected):
    body = body_of(model, rng, longest) | {"max_tokens": longest, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        for _ in range(rng.randint(1, 20)):
            next(lines, None)
    return "left a stream"


def connect(http, body):
    """A bare connection that has sent a request; it takes no more than a few KiB that nobody has read."""
    host, _, port = str(http.base_url).removeprefix("http://").strip("/").partition(":")
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(120)
    connection.connect((host, int(port)))
    return connection, head.encode() + data


def leave_early(http, model, rng, longest, expected):
    """Without waiting for anything; so early, perhaps, that the request is not even read."""
    connection, request = connect(http, body_of(model, rng, longest))
    with connection:
        connection.sendall(request[: rng.choice([10, 150, 10_000])])
    return "left early"


def slow(http, model, rng, longest):
    """A reader of a long stream, and whether he was let in."""
    body = body_of(model, rng, longest) | {"max_tokens": longest, "stream": True, "logprobs": True, "top_logprobs": 20}
    connection, request = connect(http, body)
    connection.sendall(request)
    received = connection.recv(100)
    assert received.startswith((b"HTTP/1.1 200", b"HTTP/1.1 429")), received
    return connection, received.startswith(b"HTTP/1.1 200")


def read_slowly(http, model, rng, longest, expected):
    """With pauses, of a second or so in all, in which what is written has to wait."""
    connection, let_in = slow(http, model, rng, longest)
    with connection:
        if not let_in:
            return "429"
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            if rng.random() < 0.1:
                time.sleep(0.02)
            piece = connection.recv(8192)
            assert piece, "the stream was cut"
            received += piece
    assert b"data: [DONE]\n\n" in received
    return "read slowly"


def stop_reading(http, model, rng, longest, expected):
    """And leave with most of it unread."""
    connection, let_in = slow(http, model, rng, longest)
    with connection:
        if not let_in:
            return "429"
        time.sleep(rng.uniform(0.2, 1.0))
        assert http.get("/health").status_code == 200, "others are served meanwhile"
    return "stopped reading"


def nonsense(http, model, rng, longest, expected):
    bodies = [b"{", b"[1]", b"\xff", b'{"messages": 1}', b'{"model": "x", "messages": []}',
              b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"999999": 1}}',
              b'{"messages": [{"role": "user", "content": "x"}], "n": 999}',
              b'{"messages": [{"role": "user", "content": "' + b"x " * 100_000 + b'"}]}']  # fmt: skip
    response = http.post(
        "/v1/chat/completions", content=rng.choice(bodies), headers={"content-type": "application/json"}
    )
    assert response.status_code in (400, 404, 429), response.text
    assert response.json()["error"]["message"]
    return "nonsense"


KINDS = [whole, stream, leave_stream, leave_early, read_slowly, stop_reading, nonsense]
