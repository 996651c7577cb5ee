"""``gossip report --live``: the page of a run that goes on, on loopback only."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gossip.errors import ConfigError, GossipError
from gossip.run import shown

HOST = "127.0.0.1"
EVERY_S = 3.0
"""An open page asks so often for a newer one."""
SHARE = 4.0
"""A page that took a second to make is shown for so many: a report is not to slow its run down."""

Make = Callable[[str], str]
"""Takes a nonce for the script of the page, and returns the page."""


class Latest:
    """The newest page. Whoever asks makes it, when the last one is old enough."""

    def __init__(self, make: Make) -> None:
        self.nonce = secrets.token_urlsafe(16)
        self._make = make
        self._lock = threading.Lock()
        self._page, self._until = b"", 0.0

    def page(self) -> bytes:
        """Raises: GossipError: The run cannot be read any more."""
        with self._lock:
            began = time.monotonic()
            if began >= self._until:
                self._page = self._make(self.nonce).encode("utf-8", "backslashreplace")
                now = time.monotonic()
                self._until = now + max(EVERY_S / 2, SHARE * (now - began))
            return self._page


class LiveServer(ThreadingHTTPServer):
    """Answers requests for ``/`` that name this server by its own address: a page of somebody else
    in the same browser cannot read a run by a name that leads here."""

    daemon_threads = True

    def __init__(self, latest: Latest, port: int) -> None:
        super().__init__((HOST, port), _Handler)
        self.latest = latest
        self.hosts = {f"{name}:{self.server_address[1]}" for name in (HOST, "localhost")}

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    timeout = 10.0
    server_version, sys_version = "gossip", ""

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            self._answer(403, b"this address is not the server's own\n", "text/plain")
        elif self.path.partition("?")[0] != "/":
            self._answer(404, b"there is only /\n", "text/plain")
        else:
            try:
                page = self.server.latest.page()
            except GossipError as error:
                text = f"the run cannot be read: {shown(error)}\n"
                self._answer(500, text.encode("utf-8", "backslashreplace"), "text/plain")
            else:
                self._answer(200, page, "text/html")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """A request every few seconds is no news."""


def serve(make: Make, port: int) -> None:
    """Serves until Ctrl-C. Raises: ConfigError: The port is taken."""
    try:
        server = LiveServer(Latest(make), port)
    except OSError as error:
        raise ConfigError(
            f"cannot serve the report on port {port}: {error.strerror}",
            "leave --port out: a free one is chosen",
        ) from error
    with server:
        print(f"the report is at {server.url}    stop: Ctrl-C", flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print("", file=sys.stderr)
