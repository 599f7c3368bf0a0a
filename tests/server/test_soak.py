"""A short soak; `scripts/soak` is the long one."""

from __future__ import annotations

from outrider import LLM
from outrider.policy.costs import FREE
from tests.server.soak import soak


def test_clients_of_all_kinds_leave_the_server_as_it_was(path, serve):
    server = serve(LLM(path, threads=1, costs=FREE, kv_tokens=1024, context_length=600), queue=16)
    outcomes = soak(server.url, "tiny", 90, clients=6, longest=100)
    assert outcomes.total() == 90
    assert set(outcomes) >= {
        "whole", "stream", "left a stream", "left early", "read slowly", "stopped reading", "nonsense"
    }  # fmt: skip
    server.check_rest()
    assert server.post(messages=[{"role": "user", "content": "Hi"}], max_tokens=3).status_code == 200
