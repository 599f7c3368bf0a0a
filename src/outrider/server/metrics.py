"""What /metrics tells Prometheus: vLLM's names where it has one, with the prefix `outrider:`.

Everything is counted from what the engine committed; a bonus token is never an accepted one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from outrider.engine import Engine
from outrider.request import Emitted, Request

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_SHORT = (0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1)


class Metrics:
    """The figures of one server, in a registry of its own."""

    def __init__(self, engine: Engine) -> None:
        self._registry = CollectorRegistry()
        self._spoken: dict[int, float] = {}  # when each running request was last added to

        self._prompt = self._counter("prompt_tokens", "Prompt tokens of requests that have begun to be answered")
        self._generated = self._counter("generation_tokens", "Committed tokens")
        self._finished = self._counter("request_success", "Finished texts, by reason", "finished_reason")
        self._refused = self._counter("http_errors", "Answers that were an error, by HTTP status", "status")
        self._preempted = self._counter("num_preemptions", "KV caches that were dropped for want of room")
        self._drafts = self._counter("spec_decode_num_drafts", "Drafts sent to verification", "drafter")
        self._drafted = self._counter("spec_decode_num_draft_tokens", "Tokens sent to verification", "drafter")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Drafted tokens committed", "drafter")
        self._positions = self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "Drafted tokens committed, by place in the draft", "position"
        )
        self._skipped = self._counter(
            "spec_decode_num_skipped", "Steps of a request without a draft, by reason", "reason"
        )
        self._cached = self._counter("prefix_cache_hits", "Prompt tokens whose KV was there already")
        self._per_step = self._histogram("tokens_per_step", "Tokens that a step commits to a text", range(1, 18))
        self._first = self._histogram("time_to_first_token_seconds", "From arrival to the first token", _SECONDS)
        self._between = self._histogram(
            "inter_token_latency_seconds", "Time between steps of a text, over the tokens of the later one", _SHORT
        )
        self._whole = self._histogram("e2e_request_latency_seconds", "From arrival to the last token", _SECONDS)

        scheduler, pool = engine.scheduler, engine.cache.pool
        self._gauge("num_requests_running", "Texts being written", lambda: len(scheduler.running))
        self._gauge("num_requests_waiting", "Texts waiting", lambda: len(scheduler.waiting))
        self._gauge("kv_cache_usage_perc", "Used part of the KV cache, 0 to 1", lambda: 1 - pool.free / pool.size)

    def add(self, emitted: Emitted, arrived: float, now: float) -> None:
        """Count what a step added to a text. arrived, now: seconds of `time.perf_counter`."""
        request, tokens = emitted.request, len(emitted.token_ids)
        if tokens:
            self._generated.inc(tokens)
            self._per_step.observe(tokens)
            before = self._spoken.get(request.id)
            self._spoken[request.id] = now
            if before is None:
                self._prompt.inc(len(request.prompt))
                self._cached.inc(request.stats.cached)
                self._first.observe(now - arrived)
            else:
                self._between.observe((now - before) / tokens)
            self._draft(emitted)
        if emitted.finish_reason is not None:
            self._spoken.pop(request.id, None)
            self._finished.labels(emitted.finish_reason).inc()
            self._preempted.inc(request.stats.preemptions)
            self._whole.observe(now - arrived)

    def abandon(self, request: Request) -> None:
        """A text was given up before its end."""
        self._spoken.pop(request.id, None)
        self._finished.labels("cancelled").inc()
        self._preempted.inc(request.stats.preemptions)

    def refuse(self, status: int) -> None:
        """An answer was an error."""
        self._refused.labels(str(status)).inc()

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self._registry)

    def _draft(self, emitted: Emitted) -> None:
        drafting = emitted.drafting
        if drafting.drafted:
            self._drafts.labels(drafting.drafter).inc()
            self._drafted.labels(drafting.drafter).inc(drafting.drafted)
            self._accepted.labels(drafting.drafter).inc(drafting.accepted)
            for position in range(drafting.accepted):
                self._positions.labels(str(position)).inc()
        else:
            self._skipped.labels(_why_not(emitted)).inc()

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"outrider:{name}", help, labels, registry=self._registry)

    def _histogram(self, name: str, help: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"outrider:{name}", help, buckets=buckets, registry=self._registry)

    def _gauge(self, name: str, help: str, value: Callable[[], float]) -> None:
        Gauge(f"outrider:{name}", help, registry=self._registry).set_function(value)


def _why_not(emitted: Emitted) -> str:
    """Why a step drafted nothing."""
    if emitted.request.speculation.length == 0:
        return "off"
    if not emitted.drafting.allowed:
        return "no_room"
    return "would_not_pay" if emitted.drafting.declined else "nothing_proposed"
