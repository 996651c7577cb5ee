"""Checks and assembly of incoming messages. Each header is checked before any byte of its payload
is stored. Payloads are assembled in memory that the receiver allocates."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial

import numpy as np

from gossip.core import (
    BULK_MESSAGES,
    Activation,
    ActivationGradient,
    Arriving,
    AuditReply,
    Commit,
    Envelope,
    Message,
    Payload,
    PeerId,
    Received,
    StateOffer,
    Update,
)
from gossip.errors import Malformed
from gossip.vectors import ByteArray, PartsDigest, are_finite, from_bytes

from .base import PayloadLimit, ResultRoom, Traffic
from .chunks import (
    CHUNK_BYTES,
    FIRST,
    FIRST_MARK,
    LENT,
    NEXT,
    NEXT_MARK,
    chunk_of,
    view_of,
)
from .codec import HEADER_BYTES_MAX, decode
from .lending import BufferPool, MappedMemory, watched_view

UNFINISHED_MAX = 2  # payloads of one sender: one in transfer, one from a former connection
ANYBODY: PeerId = -1
"""Owner of a connection from an unknown peer. Messages on such a connection may name any sender."""
STALLED_S = 10.0
"""Time without progress after which an unfinished payload is dropped, in seconds."""
TOLD_EVERY_S = 0.1
"""Interval between two progress reports about a payload in transfer, in seconds."""
BLOCK_BYTES = 2**19
"""Size of the blocks in which a payload is copied from shared memory, in bytes. A block of this
size stays in the cache until it is hashed and checked."""
POOLED_BYTES = 2**17
"""Minimum size of a vector, in bytes, for which memory is reused."""
ORPHANED_S = 1.0
"""Time without progress after which an unfinished payload is dropped if its link is down, in
seconds. Bytes that are still in the kernel arrive earlier."""

_BULK = frozenset(BULK_MESSAGES)
_DIGESTED = (Commit, StateOffer, Activation, ActivationGradient, AuditReply)
_BYTES = (StateOffer, Activation, ActivationGradient, AuditReply)
"""Messages with payloads that are not float32 vectors."""


@dataclass(frozen=True, slots=True)
class Loan:
    """Payload in shared memory of its sender that is being copied. ``transfer`` is the sender's
    number of the payload."""

    transfer: int
    incoming: IncomingPayload
    source: ByteArray


@dataclass(slots=True)
class HeaderFilter:
    """Decides which headers are admitted. Rejected headers are counted by reason."""

    run: bytes
    local: PeerId
    payload_limit: PayloadLimit
    traffic: Traffic

    def control(self, data: bytes, owner: PeerId = ANYBODY) -> Envelope | None:
        envelope = self._open(data, owner)
        if envelope is not None and type(envelope.message) in _BULK:
            return self._refuse("wrong_lane")
        return envelope

    def bulk(
        self, data: bytes | memoryview, nbytes: int | None, owner: PeerId = ANYBODY
    ) -> Envelope | None:
        """Return the envelope of a header of the bulk lane; None if the header is rejected.
        ``nbytes`` is the size of the payload that the sender has announced; None if there is no
        payload."""
        envelope = self._open(data, owner)
        if envelope is None:
            return None
        message = envelope.message
        if type(message) not in _BULK:
            return self._refuse("wrong_lane")
        if nbytes is None:
            return envelope
        limit = self.payload_limit(envelope.sender, message)
        if limit < 0:
            return self._refuse("unexpected")
        if nbytes > limit:
            return self._refuse("too_large")
        if nbytes != (message.nbytes if isinstance(message, StateOffer) else limit):
            return self._refuse("wrong_size")
        return envelope

    def _open(self, data: bytes | memoryview, owner: PeerId) -> Envelope | None:
        try:
            envelope = decode(data)
        except Malformed:
            return self._refuse("malformed")
        if envelope.run != self.run:
            return self._refuse("foreign_run")
        if envelope.sender == self.local:
            return self._refuse("own_name")
        if owner not in (ANYBODY, envelope.sender):
            self.traffic.note(
                ("wrong_name", owner),
                f"peer {owner} sends messages in the name of peer {envelope.sender}",
                f"they are rejected: peer {owner} is Byzantine or broken",
            )
            return self._refuse("wrong_name")
        return envelope

    def _refuse(self, reason: str) -> Envelope | None:
        self.traffic.drop(reason)
        return None


class IncomingPayload:
    """A payload in transfer. It is hashed and checked chunk by chunk, so that no call takes
    long."""

    __slots__ = (
        "_digest",
        "_finite",
        "_is_vector",
        "_raw",
        "chunk_bytes",
        "deadline",
        "dropped",
        "envelope",
        "filled",
        "index",
        "nbytes",
        "patience_s",
        "tell_at",
    )

    def __init__(
        self,
        envelope: Envelope,
        nbytes: int,
        now: float = 0.0,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """Create a payload without data. ``chunk_bytes``: maximum size of a chunk of the lane."""
        self.envelope, self.nbytes = envelope, nbytes
        self.chunk_bytes = chunk_of(nbytes, chunk_bytes)
        self.index = self.filled = 0
        self.dropped = False
        self.patience_s = STALLED_S
        self.deadline = now + self.patience_s
        self.tell_at = now + TOLD_EVERY_S  # a payload that arrives earlier needs no progress report
        self._finite = True
        self._raw: ByteArray = np.empty(nbytes, np.uint8)
        kind = type(envelope.message)
        self._is_vector = kind not in _BYTES
        self._digest = PartsDigest(_parts_of(envelope.message)) if kind in _DIGESTED else None

    def receive_in(self, memory: ByteArray) -> None:
        """Use ``memory``, ``(nbytes,)``, for the payload. The caller calls this before the first
        chunk arrives."""
        assert len(memory) == self.nbytes
        assert not self.filled
        self._raw = memory

    def drop(self) -> None:
        """Release the memory. The connection may still have a reference to this object."""
        self.dropped, self._raw = True, np.empty(0, np.uint8)

    def stay_in(self, source: ByteArray) -> None:
        """Use the payload in ``source``, ``(nbytes,)``, without a copy. The sender may change
        ``source``, so the checks hold only for the time at which they are computed."""
        self.receive_in(source)

    def stays_in(self, source: ByteArray) -> bool:
        return self._raw is source

    def room(self) -> memoryview:
        """Return the memory for the next chunk. The chunk must fill it completely."""
        view = view_of(self._raw)
        return (
            view
            if self.nbytes <= self.chunk_bytes
            else view[self.filled : self.filled + self.chunk_bytes]
        )

    def copy_from(self, source: ByteArray) -> bool:
        """Copy the next chunk from ``source``, unless the payload stays there. Then check and hash
        the copy, because the source may change at any time. Return whether this was the last
        chunk."""
        if not self.stays_in(source):
            stop = self.filled + self.chunk_bytes
            np.copyto(self._raw[self.filled : stop], source[self.filled : stop])
        return self.grow()

    def grow(self) -> bool:
        """Check and hash the next chunk, which is in its place. Return whether it was the last
        chunk."""
        chunk = self._raw
        if self.nbytes > self.chunk_bytes:
            chunk = chunk[self.filled : self.filled + self.chunk_bytes]
        if self._digest is not None:
            self._digest.update(view_of(chunk))
        if self._is_vector:
            self._finite = self._finite and are_finite(chunk)
        self.index += 1
        self.filled += len(chunk)
        return self.filled == self.nbytes

    def news(self, now: float) -> tuple[Arriving, ...]:
        """Return a progress report if one is due, at most once in ``TOLD_EVERY_S``."""
        if now < self.tell_at:
            return ()
        self.tell_at = now + TOLD_EVERY_S
        told = self.envelope
        return (Arriving(told.sender, told.incarnation, told.message, self.filled, self.nbytes),)

    def finish(self) -> Received:
        """Return the message with the complete payload."""
        digest, parts = (b"", ()) if self._digest is None else self._digest.digests()
        data = from_bytes(self._raw) if self._is_vector else self._raw
        payload = Payload(data, self.nbytes, self._finite, digest, parts)
        return Received(
            self.envelope.sender, self.envelope.incarnation, self.envelope.message, payload
        )


def _parts_of(message: Message) -> tuple[int, ...]:
    return message.parts if isinstance(message, StateOffer) else ()


class Assembly:
    """Unfinished payloads by connection. A peer therefore cannot add data to a payload on the
    connection of another peer.

    A connection carries one payload at a time. ``UNFINISHED_MAX`` limits the number of payloads for
    each sender that headers name. At this limit, a new payload replaces the oldest, because a
    sender does not continue the payloads of a former connection.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._open: dict[Hashable, tuple[int, IncomingPayload]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, connection: Hashable, transfer: int, incoming: IncomingPayload) -> None:
        if self._open.pop(connection, None) is not None:
            self._traffic.drop("gap")
        sender, incarnation = incoming.envelope.sender, incoming.envelope.incarnation
        others = [
            (c, i.envelope.incarnation)
            for c, (_, i) in self._open.items()
            if i.envelope.sender == sender
        ]
        for other, other_incarnation in others:
            if other_incarnation < incarnation:
                self._forget(other, "gap")
        crowd = [c for c, other_incarnation in others if other_incarnation >= incarnation]
        if len(crowd) >= UNFINISHED_MAX:
            self._forget(crowd[0], "crowded")
        self._open[connection] = (transfer, incoming)

    def expect(
        self, connection: Hashable, transfer: int, index: int, now: float
    ) -> IncomingPayload | None:
        """Return the payload to which the chunk ``index`` belongs. If there is none, count the
        chunk as dropped and return None."""
        found = self._open.get(connection)
        if found is None or found[0] != transfer:
            self._traffic.drop("unknown_transfer")
            return None
        if found[1].index != index:
            self._forget(connection, "gap")
            return None
        found[1].deadline = now + found[1].patience_s
        return found[1]

    def done(self, connection: Hashable) -> None:
        """Remove the payload of a connection, which is complete or has received an invalid
        chunk."""
        self._open.pop(connection, None)

    def closed(self, connection: Hashable) -> None:
        """Handle the end of a connection: drop its unfinished payload."""
        if connection in self._open:
            self._forget(connection, "gap")

    def orphan(self, sender: PeerId, now: float) -> None:
        """Shorten the deadlines of a sender's payloads, because its link is down. They do not
        expire at once, because the last bytes may still be in transit (docs/design_notes.md
        N16)."""
        for _, incoming in self._open.values():
            if incoming.envelope.sender == sender:
                incoming.patience_s = ORPHANED_S
                incoming.deadline = min(incoming.deadline, now + ORPHANED_S)

    def expire(self, now: float) -> None:
        for connection in [
            c for c, (_, incoming) in self._open.items() if incoming.deadline <= now
        ]:
            self._forget(connection, "gap")

    def _forget(self, connection: Hashable, reason: str) -> None:
        _, incoming = self._open.pop(connection)
        incoming.drop()
        self._traffic.drop(reason)


class Reception:
    """Receiver of the inbound bulk lane. It checks headers and assembles payloads.

    Args:
        chunk_bytes: Maximum size of a chunk of the lane, in bytes.
    """

    def __init__(self, gate: HeaderFilter, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.gate, self.traffic, self.chunk_bytes = gate, gate.traffic, chunk_bytes
        self.assembly = Assembly(gate.traffic)
        self.room: ResultRoom | None = None
        self.updates_stay = False
        # Payloads in shared memory that no array refers to any more: (connection, transfer).
        self.let_go: deque[tuple[tuple[int, int], int]] = deque()
        self._pool = BufferPool()

    def plain(self, header: bytes | memoryview, owner: PeerId = ANYBODY) -> Received | None:
        """Return the message of a header without a payload. If the header is rejected, count it and
        return None."""
        envelope = self.gate.bulk(header, None, owner)
        return (
            None
            if envelope is None
            else Received(envelope.sender, envelope.incarnation, envelope.message)
        )

    def chunk(
        self, connection: Hashable, header: bytes | memoryview, now: float, owner: PeerId = ANYBODY
    ) -> IncomingPayload | None:
        """Return the payload to which the chunk after this header belongs. If the header is
        rejected, count it and return None."""
        mark = header[0] if header else 0
        if mark == FIRST_MARK and FIRST.size < len(header) <= FIRST.size + HEADER_BYTES_MAX:
            _, transfer, nbytes = FIRST.unpack_from(header)
            envelope = self.gate.bulk(memoryview(header)[FIRST.size :], nbytes, owner)
            if envelope is None:
                return None
            incoming = IncomingPayload(envelope, nbytes, now, self.chunk_bytes)
            self._place(incoming)
            if nbytes > incoming.chunk_bytes or len(self.assembly):
                self.assembly.begin(connection, transfer, incoming)
            return incoming
        if mark == NEXT_MARK and len(header) == NEXT.size:
            _, transfer, index = NEXT.unpack(header)
            return self.assembly.expect(connection, transfer, index, now)
        self.traffic.drop("malformed")
        return None

    def _place(self, incoming: IncomingPayload) -> None:
        """Choose the memory for an admitted payload."""
        message, nbytes = incoming.envelope.message, incoming.nbytes
        if nbytes < POOLED_BYTES or isinstance(message, StateOffer):
            return
        room = None
        if isinstance(message, Commit) and self.room is not None:
            room = self.room(message.round_id, message.shard, nbytes)
        incoming.receive_in(self._pool.allocate(nbytes) if room is None else room)

    def lent(
        self,
        connection: tuple[int, int],
        header: memoryview,
        mapped: tuple[int, MappedMemory] | None,
        now: float,
    ) -> tuple[int, Loan | None]:
        """Return the sender's number of a payload in shared memory, and the loan of the payload. If
        the message is not admitted, or the payload is outside the mapped memory, count the message
        and return None instead of the loan.

        Args:
            connection: Key of the connection for ``let_go``.
            mapped: Last mapping on this connection: the sender's number of the memory, and the
                memory. None if there is no mapping.
        """
        _, transfer, region, offset, nbytes = LENT.unpack_from(header)
        envelope = self.gate.bulk(header[LENT.size :], nbytes)
        if envelope is None:
            return transfer, None
        source = None
        if mapped is not None and mapped[0] == region and nbytes:
            source = mapped[1].part(offset, nbytes)
        if source is None:
            self.traffic.drop("malformed")
            return transfer, None
        incoming = IncomingPayload(envelope, nbytes, now, BLOCK_BYTES)
        if self.updates_stay and isinstance(envelope.message, Update):
            source = watched_view(source, partial(self.let_go.append, (connection, transfer)))
            incoming.stay_in(source)
        else:
            self._place(incoming)
        return transfer, Loan(transfer, incoming, source)

    def closed(self, connection: Hashable) -> None:
        """Handle the end of a connection."""
        self.assembly.closed(connection)

    def filled(
        self, connection: Hashable, incoming: IncomingPayload, whole: bool
    ) -> Received | None:
        """Process a chunk that was received in its place. Return the message if its payload is
        complete.

        Args:
            whole: Whether the chunk has exactly the expected length.
        """
        if not whole:
            self.traffic.drop("malformed")
            self.assembly.done(connection)
        elif incoming.grow():
            self.assembly.done(connection)
            return incoming.finish()
        return None
