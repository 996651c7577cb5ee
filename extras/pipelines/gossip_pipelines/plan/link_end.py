"""One end of ``gossip plan link``. The transport has two peers. It uses unix sockets on one host,
and TCP with keys between two hosts.

The command is one end. It starts the other end on this host, or on another host by a command such
as ``ssh``. The ends exchange lines of JSON over the standard input and output of the other end.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from gossip.core import LinkUp, Payload, Ping, Received, Update
from gossip.errors import LocalError
from gossip.transport import KeyPair, ZeroMQTransport, is_loopback

RUN = b"linksrun"
SILENCE_S = 30.0
UPDATE = Update(b"lineage1", 0, 0, 0, b"d" * 16, 32, None)


@dataclass(slots=True)
class TwoKeys:
    """The keys of both ends: the key pair of this end, and the public key of the other end."""

    pair: KeyPair
    other: str
    local: int
    version: int = 0

    def key_of(self, peer: int) -> str | None:
        return None if peer == self.local else self.other

    def peer_of(self, key: str) -> int | None:
        return 1 - self.local if key == self.other else None

    def not_allowed(self, key: str) -> tuple[str, str] | None:
        return None

    def outside(self) -> dict[int, str]:
        return {}

    def refresh(self) -> None:
        """Do nothing, because no peer joins."""


class LinkEnd:
    """The transport of one end. All payloads have the same number of float32 values."""

    def __init__(self, local: int, host: str, keys: TwoKeys) -> None:
        self._local, self._numbers = local, 0
        near = is_loopback(host)
        self._transport = ZeroMQTransport(
            RUN,
            local,
            0,
            lambda sender, message: 4 * self._numbers,
            host,
            same_host=near,
            keys=None if near else keys,
        )

    @property
    def addresses(self) -> tuple[str, str]:
        return self._transport.control, self._transport.bulk

    def connect(self, addresses: Sequence[str], within_s: float = 30.0) -> bool:
        """Poll until the link is up, for at most ``within_s``. An end accepts connections only
        while it polls, so both ends must poll until both links are up."""
        self._transport.connect(1 - self._local, *addresses)
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            if any(isinstance(arrival, LinkUp) for arrival in self._transport.poll(0.01)):
                return True
        return False

    def poll_until(self, replies: IO[str]) -> None:
        """Poll until the other end has sent a line, or has ended."""
        while not select.select([replies], [], [], 0)[0]:
            self._transport.poll(0.005)

    def expect(self, numbers: int) -> None:
        """Set the number of values of all later payloads."""
        self._numbers = numbers

    def send_payload(self) -> float:
        """Send a payload. Return the seconds until the reply.

        Raises: LocalError: No reply has arrived for 30 s, for example because the link is broken.
        """
        vector = np.zeros(self._numbers, np.float32)
        payload = Payload(vector, vector.nbytes, True)
        began = time.perf_counter()
        while not self._transport.send(1 - self._local, UPDATE, payload):
            self._transport.poll(0.001)
        while time.perf_counter() - began < SILENCE_S:
            if self._received(1.0):
                return time.perf_counter() - began
        raise LocalError(f"the other end has sent no reply for {SILENCE_S:.0f} s")

    def reply(self) -> None:
        """Wait for the next payload, and reply with a ping."""
        while not self._received(0.05):
            continue
        # Without this poll, this end would receive nothing while its queue is full.
        while not self._transport.send(1 - self._local, Ping(0, 0, ())):
            self._transport.poll(0.001)

    def _received(self, wait_s: float) -> bool:
        return any(isinstance(arrival, Received) for arrival in self._transport.poll(wait_s))

    def close(self) -> None:
        self._transport.close()


def _read_order() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(0)  # The command has ended.
    order: dict[str, Any] = json.loads(line)
    return order


def _send_reply(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def run_other_end() -> None:
    """Run the process at the other end. It replies to payloads until the command ends."""
    order = _read_order()
    end = LinkEnd(1, order["host"], TwoKeys(KeyPair(*order["pair"]), order["other"], 1))
    _send_reply(addresses=end.addresses)
    _send_reply(linked=end.connect(_read_order()["addresses"]))
    end.poll_until(sys.stdin)
    while True:
        order = _read_order()
        end.expect(order["numbers"])
        _send_reply(ready=True)
        for _ in range(order["count"]):
            end.reply()


if __name__ == "__main__":
    run_other_end()
