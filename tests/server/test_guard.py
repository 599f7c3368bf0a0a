"""Who is let in: keys, host names, and how much a body may carry."""

from __future__ import annotations

import hmac

import httpx
import openai
import pytest

from outrider.server.settings import MAX_BODY

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def keyed(serve_once):
    return serve_once(api_key="open-sesame", local=False)


def test_with_a_key_only_who_has_it_is_served(keyed):
    with keyed.openai(api_key="open-sesame") as client:
        assert client.chat.completions.create(model="tiny", **CHAT).choices
    for wrong in ("x", "open", "open-sesamee", "OPEN-SESAME"):
        response = keyed.http.post("/v1/chat/completions", json=CHAT, headers={"authorization": f"Bearer {wrong}"})
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert "open-sesame" not in response.text
    for scheme, status in (("bearer", 200), ("Basic", 401)):  # its name may be written in any case
        response = keyed.http.get("/v1/models", headers={"authorization": f"{scheme} open-sesame"})
        assert response.status_code == status
    with keyed.openai(api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


@pytest.mark.parametrize(
    ("where", "status"), [("/v1/models", 401), ("/v1/nothing", 401), ("/metrics", 401), ("/health", 200), ("/", 200)]
)
def test_what_a_key_keeps_from_others(keyed, where, status):
    assert keyed.get(where).status_code == status


def test_keys_are_compared_in_constant_time(keyed, monkeypatch):
    compared = []
    original = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or original(a, b))
    keyed.http.get("/v1/models", headers={"authorization": "Bearer é".encode("latin-1")})
    assert compared == [("é".encode("latin-1"), b"open-sesame")]


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("localhost:8000", 200), ("127.0.0.1:80", 200), ("[::1]:8000", 200), ("LOCALHOST", 200),
     ("127.0.0.2:8000", 200), ("192.168.1.1", 403),
     ("example.com", 403), ("localhost.example.com", 403), ("127.0.0.1.nip.io:8000", 403), ("", 403)],
)  # fmt: skip
def test_a_local_server_answers_to_local_names_only(server, host, status):
    """A page from elsewhere that made its own name point here would be served otherwise."""
    response = server.http.get("/v1/models", headers={"host": host})
    assert response.status_code == status


def test_a_server_for_others_answers_to_any_name(keyed):
    assert keyed.http.get("/health", headers={"host": "example.com"}).status_code == 200


def test_no_other_sites_page_may_read_an_answer(server):
    response = server.http.options(
        "/v1/chat/completions", headers={"origin": "http://example.com", "access-control-request-method": "POST"}
    )
    assert not any(name.startswith("access-control") for name in response.headers)


def test_a_large_body_is_refused_before_it_is_read(server):
    with httpx.Client(base_url=server.url) as client:
        response = client.post(
            "/v1/completions", content=b"x" * (MAX_BODY + 1), headers={"content-type": "application/json"}
        )
    assert response.status_code == 413
    assert "4194304" in response.json()["error"]["message"]


def test_also_if_it_does_not_tell_its_length(server):
    def body():
        for _ in range(5):
            yield b" " * 2**20

    with httpx.Client(base_url=server.url) as client:
        response = client.post("/v1/completions", content=body(), headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_body_of_the_greatest_size_is_read(server):
    content = b'{"prompt": "Hi", "max_tokens": 1}'
    content += b" " * (MAX_BODY - len(content))
    assert (
        server.http.post("/v1/completions", content=content, headers={"content-type": "application/json"}).status_code
        == 200
    )
