"""HTTP server for the metrics of a run, on loopback only."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.1"
PATH = "/metrics"
KIND = "text/plain; version=0.0.4"


class LoopbackServer(ThreadingHTTPServer):
    """Serves one path. It rejects a request with a Host header other than its own address.
    Otherwise a foreign page in the browser could read the run through a host name that resolves to
    this machine.

    Args:
        make: Function that returns the metrics. It is called in the thread of the request.
        port: Port to listen on; 0 means any free port.
    Raises: OSError: The port is taken.
    """

    daemon_threads = True

    def __init__(self, make: Callable[[], bytes], port: int) -> None:
        super().__init__((HOST, port), _Handler)
        self.make = make
        self.hosts = {f"{name}:{self.server_address[1]}" for name in (HOST, "localhost")}

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}{PATH}"


class _Handler(BaseHTTPRequestHandler):
    server: LoopbackServer
    timeout = 10.0
    server_version, sys_version = "gossip", ""

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            self._answer(403, b"this address is not the server's own\n", "text/plain")
        elif self.path.partition("?")[0] != PATH:
            self._answer(404, f"there is only {PATH}\n".encode(), "text/plain")
        else:
            self._answer(200, self.server.make(), KIND)

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
        """Log nothing, because requests arrive every few seconds."""
