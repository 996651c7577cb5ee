"""Test environment for transports. One thread polls a few transports in turn and records their
arrivals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gossip.core import (
    Commit,
    LinkDown,
    LinkUp,
    Message,
    Payload,
    PeerId,
    Ping,
    Received,
    Rumor,
    StateOffer,
    Update,
)
from gossip.transport import Arrival, PayloadLimit, Transport

PATIENCE_S = 30.0  # timeout for each condition that a check waits for
MIB = 2**20
RUN, LINEAGE, DIGEST = b"this-run", b"lineage1", b"digest-of-a-rest"


class TransportFactory(Protocol):
    """Factory of transports with bound addresses. If ``at`` is given, the transport must use these
    addresses (control, bulk), which a closed transport has freed."""

    def __call__(
        self,
        run: bytes,
        local: PeerId,
        incarnation: Callable[[], int] | int,
        payload_limit: PayloadLimit,
        at: tuple[str, str] | None = None,
    ) -> Transport: ...


class World(ExitStack):
    """Transports that one thread polls in turn, and the arrivals of each transport."""

    def __init__(self, make: TransportFactory) -> None:
        super().__init__()
        self._make = make
        self.heard: dict[int, list[Arrival]] = {}
        self._driven: list[Transport] = []

    def peer(
        self,
        local: PeerId,
        limit: int | PayloadLimit = 16 * MIB,
        *,
        run: bytes = RUN,
        incarnation: Callable[[], int] | int = 0,
        at: tuple[str, str] | None = None,
    ) -> Transport:
        transport = self._make(
            run, local, incarnation, limit if callable(limit) else lambda sender, message: limit, at
        )
        self.callback(transport.close)
        self._driven.append(transport)
        self.heard[id(transport)] = []
        return transport

    def pair(self, limit: int | PayloadLimit = 16 * MIB) -> tuple[Transport, Transport]:
        """Return peers 0 and 1, after peer 0 has connected to peer 1."""
        first, second = self.peer(0, limit), self.peer(1, limit)
        self.link(first, 1, second)
        return first, second

    def link(self, transport: Transport, peer: PeerId, other: Transport) -> None:
        transport.connect(peer, other.control, other.bulk)
        self.until(
            lambda: LinkUp(peer) in self.heard[id(transport)], f"LinkUp({peer}) after connect"
        )

    def stop(self, transport: Transport) -> None:
        self._driven.remove(transport)
        transport.close()

    def neglect(self, transport: Transport) -> None:
        """Stop polling a transport."""
        self._driven.remove(transport)

    def drive(self, transport: Transport) -> None:
        self._driven.append(transport)

    def pump(self) -> None:
        for transport in self._driven:
            self.heard[id(transport)] += transport.poll(0.002)

    def until(self, condition: Callable[[], bool], what: str | Callable[[], str]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, (
                f"waited {PATIENCE_S:.0f} s, without {what if isinstance(what, str) else what()}"
            )
            self.pump()

    def broke(self, transport: Transport) -> bool:
        return any(isinstance(arrival, LinkDown) for arrival in self.heard[id(transport)])

    def received(self, transport: Transport) -> list[Received]:
        return [arrival for arrival in self.heard[id(transport)] if isinstance(arrival, Received)]

    def wait_received(self, transport: Transport, count: int) -> list[Received]:
        self.until(
            lambda: len(self.received(transport)) >= count,
            lambda: f"{count} messages; {transport.traffic}",
        )
        return self.received(transport)

    def wait_drop(self, transport: Transport, reason: str) -> None:
        dropped = transport.traffic.dropped
        self.until(
            lambda: dropped.get(reason, 0) > 0,
            lambda: f"a drop counted as {reason!r}; {transport.traffic}",
        )

    def send(
        self, transport: Transport, peer: PeerId, message: Message, payload: Payload | None = None
    ) -> None:
        """Try to send until the transport accepts the message. It rejects messages while its queue
        is full."""
        self.until(
            lambda: transport.send(peer, message, payload),
            f"send of {type(message).__name__} to be accepted",
        )


def ping(nonce: int) -> Ping:
    return Ping(nonce, 1, (Rumor(2, "suspect", 7, "tcp://127.0.0.1:1", "", 0),))


def update(round_id: int) -> Update:
    return Update(LINEAGE, round_id, 0, 0, DIGEST, 32, 0.25)


def commit(round_id: int = 5) -> Commit:
    return Commit(LINEAGE, round_id, 0, 0, 0, 0, DIGEST, DIGEST, (), (), (0, 1), None, "")


def state_offer(nbytes: int) -> StateOffer:
    return StateOffer(LINEAGE, 1, 5, DIGEST, DIGEST, nbytes, b"core", "")


def floats(nbytes: int) -> NDArray[np.float32]:
    return np.arange(nbytes // 4, dtype=np.float32)


def payload_of(data: NDArray[Any]) -> Payload:
    return Payload(data, data.nbytes)


def rounds_of(arrivals: Iterable[Received]) -> list[int]:
    return [arrival.message.round_id for arrival in arrivals if isinstance(arrival.message, Update)]
