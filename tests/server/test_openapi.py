"""Bodies made from the server's own schema, right ones and wrong ones: none is answered with a server error."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    status_code_conformance,
)

from outrider import LLM
from outrider.policy.costs import FREE

CHECKS = [not_a_server_error, content_type_conformance, status_code_conformance]
BOUNDED = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
POSTS = ["/v1/chat/completions", "/v1/completions"]
GETS = ["/v1/models", "/v1/models/{model}", "/health", "/metrics"]


@pytest.fixture(scope="module")
def server(path, serve_once):
    """Texts are short here, whatever is asked for."""
    return serve_once(LLM(path, threads=1, costs=FREE, context_length=64))


@pytest.fixture(scope="module")
def schema(server):
    return schemathesis.openapi.from_dict(server.get("/openapi.json").json())


def each(server, operation, mode, checks):
    """Send what the schema allows, or what it does not."""

    @BOUNDED
    @given(case=operation.as_strategy(generation_mode=mode))
    def test(case):
        response = case.call_and_validate(base_url=server.url, checks=checks)
        if 400 <= response.status_code < 500:
            assert response.json()["error"]["message"]

    test()


@pytest.mark.parametrize(("method", "where"), [("POST", post) for post in POSTS] + [("GET", get) for get in GETS])
def test_right_requests_are_answered_or_refused_with_a_reason(server, schema, method, where):
    each(server, schema[where][method], GenerationMode.POSITIVE, CHECKS)


@pytest.mark.parametrize("where", POSTS)
def test_wrong_bodies_are_refused(server, schema, where):
    each(server, schema[where]["POST"], GenerationMode.NEGATIVE, [*CHECKS, negative_data_rejection])


def test_the_schema_is_all_there_is(schema):
    """A route that is added is tried, too."""
    assert set(schema) == {*POSTS, *GETS}
