"""Transport that encodes updates and results and sends them over an inner transport. For its
callers, payloads are vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gossip.core import Commit, Message, Payload, PeerId, Push, Received, Update
from gossip.errors import Malformed
from gossip.vectors import ByteArray, PayloadKind, Vector, WireFormat, to_bytes

from .base import Arrival, ResultRoom, Transport

SENT_KEPT = 8
"""Number of encoded payloads in the cache. A payload is often sent to many peers, one after
another."""


class EncodedTransport:
    """Transport around an inner transport. Payloads of the inner transport are encoded bytes.

    An update or result that cannot be decoded is delivered as a vector of NaN, and counted as
    ``undecodable``. So its sender is treated like a sender of non-finite values.

    Args:
        wire: Returns the format of payloads; None until the trainer has its model. Until then, no
            message has a payload.
    """

    def __init__(self, inner: Transport, wire: Callable[[], WireFormat | None]) -> None:
        self._inner, self._wire = inner, wire
        self.control, self.bulk, self.traffic = inner.control, inner.bulk, inner.traffic
        self.link_timeout_s, self.woken = inner.link_timeout_s, False
        self._sent: list[tuple[Payload, Payload]] = []

    def connect(self, peer: PeerId, control: str, bulk: str) -> None:
        self._inner.connect(peer, control, bulk)

    def disconnect(self, peer: PeerId) -> None:
        self._inner.disconnect(peer)

    def send(self, peer: PeerId, message: Message, payload: Payload | None = None) -> bool:
        if payload is not None and _place_of(message) is not None:
            payload = self._below(message, payload)
        return self._inner.send(peer, message, payload)

    def share(
        self, fd: int, memory: ByteArray, room: ResultRoom, *, updates_stay: bool = False
    ) -> None:
        """Share nothing, because payloads are sent as encoded bytes and ``memory`` has the
        vectors."""

    def poll(
        self, timeout_s: float, wake: Sequence[int] = (), awake_s: float = 0.0
    ) -> list[Arrival]:
        come = self._inner.poll(timeout_s, wake, awake_s)
        self.woken = self._inner.woken
        return [
            self._decoded(arrival, arrival.payload)
            if isinstance(arrival, Received) and arrival.payload is not None
            else arrival
            for arrival in come
        ]

    def in_flight(self, data: object) -> bool:
        return self._inner.in_flight(data)

    def close(self, linger_s: float = 0.0) -> None:
        self._inner.close(linger_s)

    def _below(self, message: Message, payload: Payload) -> Payload:
        """Return the encoded payload. The same payload object always has the same encoded object,
        as long as it is in the cache."""
        for known, below in self._sent:
            if known is payload:
                return below
        content = payload.encoded
        if content is None:
            content = self._encoded(message, payload.data)
        below = replace(payload, data=content, nbytes=len(content), encoded=None)
        self._sent = [(payload, below), *self._sent[: SENT_KEPT - 1]]
        return below

    def _encoded(self, message: Message, vector: Vector) -> ByteArray:
        """Return the encoded bytes of a vector that the trainer has not encoded, for example a
        false update of an injected fault."""
        kind, round_id, shard = _place_of(message) or ("update", 0, 0)
        wire = self._wire()
        if wire is None or shard >= len(wire.sizes) or len(vector) != wire.sizes[shard]:
            return to_bytes(vector)  # a vector of a wrong size has no encoding
        return wire.encode(vector, kind, round_id, shard)

    def _decoded(self, arrival: Received, payload: Payload) -> Received:
        place, wire = _place_of(arrival.message), self._wire()
        if place is None or wire is None:
            return arrival
        raw = to_bytes(payload.data)
        kind, round_id, shard = place
        try:
            vector, finite = wire.decode(raw, kind, round_id, shard), True
        except Malformed:
            self.traffic.drop("undecodable")
            vector, finite = np.full(sum(wire.sizes[shard : shard + 1]), np.nan, np.float32), False
        content = Payload(vector, len(raw), finite, payload.digest, payload.parts, raw)
        return replace(arrival, payload=content)


def _place_of(message: Message) -> tuple[PayloadKind, int, int] | None:
    """Return the kind, round and shard of a message's payload. Return None for payloads that are
    never encoded, such as parameters and packed states."""
    match message:
        case Update():
            return "update", message.round_id, message.shard
        case Commit():
            return "result", message.round_id, message.shard
        case Push(what="gradient"):
            return "update", message.round_id, 0
        case _:
            return None
