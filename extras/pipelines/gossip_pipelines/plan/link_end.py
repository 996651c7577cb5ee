"""One end of ``gossip plan link``. The transport has two peers. It uses unix sockets on one host,
and TCP with keys between two hosts.

The command is one end. It starts the other end on this host, or on another host by a command such
as ``ssh``. The other end reads an order, a line of JSON, from its standard input. It writes its
addresses, and then replies to payloads until its standard input is closed.
"""

from __future__ import annotations

import json
import select
import sys
import time
from dataclasses import dataclass

import numpy as np

from gossip.core import LinkUp, Message, Payload, Ping, Received, Update
from gossip.errors import LocalError
from gossip.transport import KeyPair, ZeroMQTransport, is_loopback

RUN = b"linksrun"
SILENCE_S = 30.0


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
    """The transport of one end. The round of an update is the number of float32 values in its
    payload."""

    def __init__(self, host: str, keys: TwoKeys) -> None:
        near = is_loopback(host)
        self._other = 1 - keys.local
        self._transport = ZeroMQTransport(
            RUN,
            keys.local,
            0,
            lambda sender, message: 4 * message.round_id if isinstance(message, Update) else -1,
            host,
            same_host=near,
            keys=None if near else keys,
        )
        self.addresses = self._transport.control, self._transport.bulk

    def connect(self, control: str, bulk: str) -> None:
        """Poll until the link is up. Raises: LocalError: It is not up after 30 s."""
        self._transport.connect(self._other, control, bulk)
        until = time.monotonic() + SILENCE_S
        while time.monotonic() < until:
            if any(isinstance(arrival, LinkUp) for arrival in self._transport.poll(0.01)):
                return
        raise LocalError("the two ends cannot connect to each other")

    def send_payload(self, numbers: int) -> float:
        """Send a payload of ``numbers`` values. Return the seconds until the reply.

        Raises: LocalError: No reply has arrived for 30 s, for example because the link is broken.
        """
        vector = np.zeros(numbers, np.float32)
        update = Update(b"lineage1", numbers, 0, 0, b"d" * 16, 32, None)
        began = time.perf_counter()
        self._send(update, Payload(vector, vector.nbytes, True))
        while time.perf_counter() - began < SILENCE_S:
            if self._received(1.0):
                return time.perf_counter() - began
        raise LocalError(f"the other end has sent no reply for {SILENCE_S:.0f} s")

    def serve(self, control: str, bulk: str) -> None:
        """Connect to the other end, and reply to each of its payloads with a ping, until the
        standard input is closed."""
        self._transport.connect(self._other, control, bulk)
        while not select.select([sys.stdin], [], [], 0)[0]:
            if self._received(0.05):
                self._send(Ping(0, 0, ()))

    def _send(self, message: Message, payload: Payload | None = None) -> None:
        # Without this poll, this end would receive nothing while its queue is full.
        while not self._transport.send(self._other, message, payload):
            self._transport.poll(0.001)

    def _received(self, wait_s: float) -> bool:
        return any(isinstance(arrival, Received) for arrival in self._transport.poll(wait_s))

    def close(self) -> None:
        self._transport.close()


def run_other_end() -> None:
    """Run the process at the other end. It replies to payloads until the command ends."""
    order = json.loads(sys.stdin.readline() or "null")
    if order is not None:
        end = LinkEnd(order["host"], TwoKeys(KeyPair(*order["pair"]), order["other"], 1))
        print(json.dumps(end.addresses), flush=True)
        end.serve(*order["addresses"])


if __name__ == "__main__":
    run_other_end()
