"""The bodies that clients in use send, as captured, are answered as they stand, but for the model's name and the length."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

CAPTURES = [json.loads(file.read_text()) for file in sorted((Path(__file__).parent / "bodies").glob("*.json"))]
REQUESTS = [(capture["client"], request) for capture in CAPTURES for request in capture["requests"]]


@pytest.mark.parametrize(("client", "request_"), REQUESTS, ids=[name for name, _ in REQUESTS])
def test_bodies_of_real_clients_are_answered(server, client, request_):
    body = request_["body"] | {"model": "tiny"}
    limit = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    body[limit] = min(body.get(limit, 9), 9)  # a random model seldom ends by itself
    response = server.post(request_["path"], **body)
    assert response.status_code == 200, response.text
    if body.get("stream"):
        assert response.text.endswith("data: [DONE]\n\n")
    else:
        assert response.json()["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize(
    "capture", [capture for capture in CAPTURES if "refused" in capture], ids=lambda capture: capture["client"]
)
def test_what_they_ask_for_in_vain_is_named(server, capture):
    """Tools are not ignored: whoever sends them is told, and can turn them off."""
    for request in capture["refused"]:
        response = server.post(request["path"], **request["body"] | {"model": "tiny"})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == request["param"]


def test_there_are_captures():
    assert {capture["client"].split()[0] for capture in CAPTURES} == {"openai", "langchain-openai", "llm", "Open"}
