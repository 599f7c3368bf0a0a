"""Running the application under uvicorn, from a socket to a shutdown."""

from __future__ import annotations

import socket
from types import FrameType

import uvicorn

from outrider.errors import RequestError
from outrider.llm import LLM
from outrider.server.app import create_app
from outrider.server.service import Service
from outrider.server.settings import Settings


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, before the model is loaded: who cannot have the port is told at once. RequestError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise RequestError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from None
    return listener


def url(listener: socket.socket) -> str:
    """Where the server is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(llm: LLM, settings: Settings, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; then let nobody in, and give those who are in their time of grace."""
    app = create_app(llm, settings)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.grace) + 5,  # the service lets everybody down before
    )
    _Server(config, app.state.service).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Tells the service of a shutdown when it begins, not when all connections are closed."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.drain()
        super().handle_exit(sig, frame)
