"""``gossip report --live``: the page of a running run, served on loopback only."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable

from gossip.errors import ConfigError
from gossip.launch.report.loopback import LoopbackServer

EVERY_S = 3.0
"""Time between two requests of an open page, in seconds."""
SHARE = 4.0
"""Minimum life of a page, in multiples of the time to make it, so that a report does not slow its
run down."""

Make = Callable[[str], str]
"""Function that returns the page, given a nonce for its script."""


class Latest:
    """The newest page. A request makes a new one if the last is old enough."""

    def __init__(self, make: Make) -> None:
        self.nonce = secrets.token_urlsafe(16)
        self._make = make
        self._lock = threading.Lock()
        self._page, self._until = b"", 0.0

    def page(self) -> bytes:
        """Return the newest page. Raises: GossipError: The run cannot be read any more."""
        with self._lock:
            began = time.monotonic()
            if began >= self._until:
                self._page = self._make(self.nonce).encode("utf-8", "backslashreplace")
                now = time.monotonic()
                self._until = now + max(EVERY_S / 2, SHARE * (now - began))
            return self._page


def serve(make: Make, port: int) -> None:
    """Serve the page until Ctrl-C. Raises: ConfigError: The port is taken."""
    try:
        server = LoopbackServer("/", "text/html", Latest(make).page, port)
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
