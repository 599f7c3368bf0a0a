"""A short soak; `scripts/soak` is the long one."""

from __future__ import annotations

from outrider import LLM
from outrider.policy.costs import FREE
from tests.server.soak import soak


def test_clients_of_all_kinds_leave_the_server_as_it_was(path, serve):
    server = serve(LLM(path, threads=1, costs=FREE, kv_tokens=1024, context_length=600), queue=4)
    outcomes = soak(server.url, "tiny", 60, clients=6, longest=100)
    assert outcomes.total() == 60
    assert {"whole", "stream", "left a stream", "left early", "read slowly", "nonsense"} <= set(outcomes)
    server.check_rest()
    assert server.post(messages=[{"role": "user", "content": "Hi"}], max_tokens=3).status_code == 200
