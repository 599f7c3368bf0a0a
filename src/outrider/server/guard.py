"""The first that sees a request: who may come in, and how much may be carried."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.server.errors import APIError
from outrider.server.settings import MAX_BODY, Settings


class Guard:
    """ASGI middleware that refuses foreign host names, wrong keys and large bodies before anything is parsed.

    refused  told of the HTTP status of each answer that is an error, whoever gave it.
    """

    def __init__(self, app: ASGIApp, settings: Settings, refused: Callable[[int], None]) -> None:
        self._app = app
        self._refused = refused
        self._local = settings.local
        self._key = None if settings.api_key is None else settings.api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                self._refused(message["status"])
            await send(message)

        if refusal := self._refusal(scope["path"], Headers(scope=scope)):
            await refusal.response()(scope, receive, counted)
        else:
            await self._app(scope, _bounded(receive), counted)

    def _refusal(self, path: str, headers: Headers) -> APIError | None:
        if self._local and not is_loopback(_name(headers.get("host", ""))):
            return APIError(403, "this server answers to localhost and 127.0.0.1 only", code="host_not_allowed")
        if self._key is not None and path.startswith(("/v1/", "/metrics")):
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if not hmac.compare_digest(given.encode("latin-1"), self._key) or scheme.lower() != "bearer":
                return APIError(
                    401,
                    "the API key is missing or wrong; it is expected as the header authorization: Bearer KEY",
                    code="invalid_api_key",
                    headers={"www-authenticate": "Bearer"},
                )
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > MAX_BODY:
            return APIError(413, _too_large(), code="body_too_large")
        return None


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone. Names other than localhost may be anybody's."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bounded(receive: Receive) -> Receive:
    """As `receive`, up to the bound: a body need not tell its length, or may lie."""
    received = 0

    async def bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY:
            raise HTTPException(413, _too_large())
        return message

    return bounded


def _too_large() -> str:
    return f"the body is larger than {MAX_BODY} bytes"


def _name(host: str) -> str:
    """The host header's name, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
