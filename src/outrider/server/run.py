"""Running the application under uvicorn, from a socket to a shutdown."""

from __future__ import annotations

import socket
import sys
from types import FrameType

import uvicorn

from outrider.errors import RequestError
from outrider.llm import LLM
from outrider.server.app import create_app
from outrider.server.service import Service
from outrider.server.settings import Settings

_BACKLOG = 1024


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises RequestError if the address or port cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise RequestError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from None
    return listener


def url(listener: socket.socket) -> str:
    """Where the server is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Serves until SIGINT or SIGTERM; then nobody is let in, and those who are in have their time of grace."""

    def __init__(self, llm: LLM, settings: Settings) -> None:
        app = create_app(llm, settings)
        self.service: Service = app.state.service
        super().__init__(
            uvicorn.Config(
                app,
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=int(settings.grace) + 5,  # the service lets everybody down before
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Where the system can, it cuts off those who read nothing: a connection closes when all is sent, so never."""
        if sys.platform == "linux":
            for listener in sockets or ():  # the connections have it from there
                patience = int(1000 * self.service.settings.stall)
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The word of a shutdown; uvicorn itself tells the application only when all connections are closed."""
        self.service.drain()
        super().handle_exit(sig, frame)
