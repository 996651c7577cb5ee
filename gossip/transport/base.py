"""Interface of transports, and what every transport guarantees. The conformance kit in
``gossip.testing`` checks these guarantees.

A transport moves messages and payloads between peers. A link to a peer has two lanes: the control
lane for small messages, and the bulk lane for messages that may have a payload. Each lane
reconnects after a failure. Only one thread calls the transport, and the transport never blocks:
``send`` queues or drops a message, and ``poll`` returns the arrivals. The transport checks the size
of a payload before it stores a byte. It counts malformed input and raises no exception.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gossip.core import Arriving, LinkDown, LinkUp, Message, Payload, PeerId, Received
from gossip.vectors import ByteArray

Arrival = Received | Arriving | LinkUp | LinkDown

PayloadLimit = Callable[[PeerId, Message], int]
"""Function that returns the length in bytes that a message's payload must have; -1 if no payload is
admitted. A payload of any other length is dropped before it is stored. Only the payload of a
``StateOffer`` may be shorter."""


ResultRoom = Callable[[int, int, int], ByteArray | None]
"""Function that returns memory to receive a result in, or None. Its arguments are the round, the
shard and the size of the result in bytes. The memory is in use until the last array over it is
freed."""

LINK_TIMEOUT_S = 0.3
FAR_LINK_TIMEOUT_S = 2.0
"""Timeouts of links within a host and between hosts, in seconds. A comment in ``sockets`` explains
why they differ."""
AGAIN_S, AGAIN_MAX_S = 0.05, 1.0
"""First and longest delay before a transport tries again to connect, in seconds."""
NOTICES_MAX = 64


@dataclass(frozen=True, slots=True)
class Notice:
    """Message to the user, with a hint. ``about``: peer that the message concerns, or None."""

    message: str
    hint: str
    about: PeerId | None = None


@dataclass
class Traffic:
    """Numbers of messages and bytes since the start.

    ``dropped`` has the number of dropped messages and connections for each reason:

    - In both directions, by an injected fault: ``cut``, ``lost``.
    - Outgoing messages: ``no_link`` (unknown peer, or no connection), ``full`` (too much is queued
      for the peer), ``bad_address``, ``keyless`` (the key of the peer is not known yet).
    - Headers: ``malformed`` (not a message), ``foreign_run`` (from another run), ``own_name``
      (another process claims to be this peer), ``wrong_lane``.
    - Senders: ``wrong_name`` (the sender is not the owner of the key), ``revoked_key``,
      ``spoken_to`` (a frame on an outbound connection).
    - Payloads: ``unexpected`` (not admitted), ``wrong_size``, ``too_large``, ``gap`` (a missing
      chunk, or a payload that was never finished), ``unknown_transfer`` (a chunk of an unknown
      payload), ``undecodable`` (bytes that no encoder of this run writes).
    - Connections of payloads: ``bad_record`` (an invalid record, which ends the connection).
    - Limits: ``crowded`` (too many unfinished payloads of one sender, or too many connections
      without keys).
    - Incoming connections: ``unknown_key``, ``no_key``, ``stale_key`` (the other side has an old
      key of this peer), ``bad_handshake`` (all other failures, also without keys), ``stranger``
      (another user of this host, or too many connections).

    ``sent_payload_bytes`` is the part of ``sent_bytes`` that belongs to payloads. Payloads in
    shared memory count towards neither of the two.

    ``notices`` has the notices that the caller has not shown yet.
    """

    sent_messages: int = 0
    sent_bytes: int = 0
    sent_payload_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.notices: deque[Notice] = deque()
        self._noted: set[object] = set()

    def note(self, matter: object, message: str, hint: str, about: PeerId | None = None) -> None:
        """Add a notice, unless ``matter`` has a notice already, or there were ``NOTICES_MAX``
        notices. ``about``: peer to which the link is down, for the reason in the notice."""
        if matter not in self._noted and len(self._noted) < NOTICES_MAX:
            self._noted.add(matter)
            self.notices.append(Notice(message, hint, about))

    def settled(self, matter: object) -> None:
        """Allow another notice about ``matter``."""
        self._noted.discard(matter)

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


class Transport(Protocol):
    control: str
    """Address of this peer's control lane, to which other peers connect."""
    bulk: str
    """Address of this peer's bulk lane."""
    traffic: Traffic
    link_timeout_s: float
    """Time without a frame after which a link is reported down, in seconds."""
    woken: bool
    """Whether one of the descriptors ``wake`` was readable in the last ``poll``."""

    def connect(self, peer: PeerId, control: str, bulk: str) -> None:
        """Open both lanes to a peer, and close its lanes to other addresses. ``LinkUp`` is reported
        when both lanes are connected.

        If the lanes are already open to these addresses, the call has no effect. An invalid address
        is counted (``bad_address``) and raises no exception, because it may come from another peer.
        """
        ...

    def disconnect(self, peer: PeerId) -> None:
        """Close the lanes to a peer and drop their queue. No ``LinkDown`` is reported."""
        ...

    def send(self, peer: PeerId, message: Message, payload: Payload | None = None) -> bool:
        """Queue a message. Return False if the message was dropped, because there is no link or the
        queue is full.

        A large payload is not copied. Its memory must stay unchanged while ``in_flight`` returns
        True for it. Until then, the transport holds a reference to the memory.
        """
        ...

    def share(
        self, fd: int, memory: ByteArray, room: ResultRoom, *, updates_stay: bool = False
    ) -> None:
        """Share ``memory`` with the peers on this host, which may map it by ``fd``. A payload in
        this memory need not be sent, because its receiver reads it there. ``fd`` must stay open.
        After this call, no process can map ``memory`` writable again. A later call shares other
        memory instead. A transport may ignore the call.

        Args:
            room: Returns memory for received results.
            updates_stay: Whether received updates may stay in the memory of their sender, which
                this peer has mapped read-only. The sender may change an update at any time, so a
                reader must verify the bytes that it has read. The memory is in use until the last
                array over it is freed.
        """
        ...

    def poll(
        self, timeout_s: float, wake: Sequence[int] = (), awake_s: float = 0.0
    ) -> list[Arrival]:
        """Wait at most ``timeout_s`` for an arrival. Return all arrivals. Those of one sender and
        lane are in the order in which they were sent.

        Return at once, possibly without arrivals, if one of the file descriptors ``wake`` becomes
        readable. For the first ``awake_s`` seconds the call may poll and yield the processor
        instead of sleeping, because a wake-up takes time.
        """
        ...

    def in_flight(self, data: object) -> bool:
        """Whether the transport still reads the memory of ``data``, the data of a payload."""
        ...

    def close(self, linger_s: float = 0.0) -> None:
        """Send queued messages for at most ``linger_s`` seconds, then close all sockets."""
        ...


class WrappedTransport:
    """Transport around an inner transport. It passes all calls to the inner transport. A subclass
    overrides the calls that it changes."""

    def __init__(self, inner: Transport) -> None:
        self._inner, self.woken = inner, False
        self.control, self.bulk, self.traffic = inner.control, inner.bulk, inner.traffic
        self.link_timeout_s = inner.link_timeout_s

    def connect(self, peer: PeerId, control: str, bulk: str) -> None:
        self._inner.connect(peer, control, bulk)

    def disconnect(self, peer: PeerId) -> None:
        self._inner.disconnect(peer)

    def send(self, peer: PeerId, message: Message, payload: Payload | None = None) -> bool:
        return self._inner.send(peer, message, payload)

    def share(
        self, fd: int, memory: ByteArray, room: ResultRoom, *, updates_stay: bool = False
    ) -> None:
        self._inner.share(fd, memory, room, updates_stay=updates_stay)

    def poll(
        self, timeout_s: float, wake: Sequence[int] = (), awake_s: float = 0.0
    ) -> list[Arrival]:
        arrivals = self._inner.poll(timeout_s, wake, awake_s)
        self.woken = self._inner.woken
        return arrivals

    def in_flight(self, data: object) -> bool:
        return self._inner.in_flight(data)

    def close(self, linger_s: float = 0.0) -> None:
        self._inner.close(linger_s)
