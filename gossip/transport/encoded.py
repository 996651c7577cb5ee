"""Transport that encodes updates and results and sends them over an inner transport. For its
callers, payloads are vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gossip.core import Commit, Message, Payload, PeerId, Push, Received, Update
from gossip.errors import Malformed
from gossip.vectors import ByteArray, PayloadKind, Vector, WireFormat, to_bytes

from .base import Arrival, ResultRoom, Transport, WrappedTransport


class EncodedTransport(WrappedTransport):
    """Transport around an inner transport. Payloads of the inner transport are encoded bytes.

    An update or result that cannot be decoded is delivered as a vector of NaN, and counted as
    ``undecodable``. So its sender is treated like a sender of non-finite values.

    Args:
        wire: Returns the format of payloads; None until the trainer has its model. Until then, no
            message has a payload.
    """

    def __init__(self, inner: Transport, wire: Callable[[], WireFormat | None]) -> None:
        super().__init__(inner)
        self._wire = wire

    def send(self, peer: PeerId, message: Message, payload: Payload | None = None) -> bool:
        if payload is not None and (place := _place_of(message)) is not None:
            content = payload.encoded
            if content is None:
                content = self._encoded(place, payload.data)
            payload = replace(payload, data=content, nbytes=len(content), encoded=None)
        return super().send(peer, message, payload)

    def share(
        self, fd: int, memory: ByteArray, room: ResultRoom, *, updates_stay: bool = False
    ) -> None:
        """Share nothing, because payloads are sent as encoded bytes and ``memory`` has the
        vectors."""

    def poll(
        self, timeout_s: float, wake: Sequence[int] = (), awake_s: float = 0.0
    ) -> list[Arrival]:
        return [
            self._decoded(arrival, arrival.payload)
            if isinstance(arrival, Received) and arrival.payload is not None
            else arrival
            for arrival in super().poll(timeout_s, wake, awake_s)
        ]

    def _encoded(self, place: tuple[PayloadKind, int, int], vector: Vector) -> ByteArray:
        """Return the encoded bytes of a vector that the trainer has not encoded, for example a
        false update of an injected fault."""
        kind, round_id, shard = place
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
