"""How a server is run: what `outrider serve` is told, and the bounds that keep one client from harming another."""

from __future__ import annotations

from dataclasses import dataclass

MAX_BODY = 4 * 2**20
"""Bytes of a request's body."""

MAX_TEXTS = 16
"""Texts of one request: `n`, times the number of prompts."""

MAX_STOPS, MAX_STOP = 16, 256
"""Stop strings of one request, and characters of each."""

MAX_BIASES = MAX_STOP_IDS = 1024
"""Entries of `logit_bias`, and of `stop_token_ids`."""

MAX_MESSAGES, MAX_PARTS = 2048, 256
"""Messages of one request, and parts of each."""

MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set.

    api_key    demanded from every client of /v1 and /metrics; None: nobody needs one.
    local      only clients that call the server localhost are served: with a name of its own, a page from elsewhere
               could reach it through the user's browser (DNS rebinding).
    queue      texts that may wait beside those that are written.
    timeout    seconds that a request may take in all.
    stall      seconds that a step of the engine, or a client that reads nothing, is waited for.
    grace      seconds that running requests are given at shutdown.
    """

    api_key: str | None = None
    local: bool = True
    queue: int = 64
    timeout: float = 600.0
    stall: float = 60.0
    grace: float = 20.0
