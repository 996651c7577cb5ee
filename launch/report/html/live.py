"""``gossip report --live``: the page of a run that goes on, on loopback only."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable

from gossip.errors import ConfigError
from gossip.launch.report.loopback import LoopbackServer

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


def serve(make: Make, port: int) -> None:
    """Serves until Ctrl-C. Raises: ConfigError: The port is taken."""
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
