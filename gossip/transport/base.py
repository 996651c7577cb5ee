"""Guarantees of every transport. The behaviour suite in ``gossip.testing`` checks them.

A transport moves envelopes and payloads between peers with addresses. A link to a peer has two
lanes, each of which reconnects after a failure: the control lane for small messages, and the bulk
lane for messages that may have a payload. One thread drives the transport, which never blocks:
``send`` queues or drops a message, and ``poll`` returns the arrivals. The transport checks each
size before it stores a byte. It counts malformed input and raises no exception for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gossip.core import Arriving, LinkDown, LinkUp, Message, Payload, PeerId, Received

Arrival = Received | Arriving | LinkUp | LinkDown

PayloadLimit = Callable[[PeerId, Message], int]
"""Function that returns the required length of a message's payload in bytes; -1 if no payload is
admitted. A payload of any other length is dropped before it is stored. Only the ``nbytes`` of a
``StateOffer`` may be anything up to this limit."""


ResultRoom = Callable[[int, int, int], NDArray[np.uint8] | None]
"""Function of the round, the shard and the size of a result in bytes. It returns memory of that
size to receive the result in, or None. The memory is in use as long as an array over it exists."""

LINK_TIMEOUT_S = 0.3
FAR_LINK_TIMEOUT_S = 2.0
"""Timeouts of links within a host and between hosts, in seconds. ``sockets`` explains why they
differ."""
AGAIN_S, AGAIN_MAX_S = 0.05, 1.0
"""First and longest delay before a failed connection is tried again, in seconds."""
NOTICES_MAX = 64


@dataclass(frozen=True, slots=True)
class Notice:
    """Message to users, with a hint. ``about``: peer that the message concerns, or None."""

    message: str
    hint: str
    about: PeerId | None = None


@dataclass
class Traffic:
    """Counts since the start, in messages and bytes.

    ``dropped`` counts dropped messages and connections by reason. In both directions, by an
    injected fault: ``cut``, ``lost``. Outgoing messages: ``no_link`` (unknown peer, or no
    connection), ``full`` (too much is queued for the peer), ``bad_address``. Incoming messages:
    ``malformed`` (not a message), ``foreign_run`` (of another run), ``own_name`` (another process
    claims to be this peer), ``wrong_lane``, ``spoken_to`` (a frame on an outbound connection),
    ``unexpected`` (a payload that is not admitted), ``wrong_size``, ``too_large``, ``gap`` (a chunk
    that does not follow, or a payload that was never finished), ``unknown_transfer`` (a chunk of no
    payload), ``crowded`` (too many unfinished payloads of one sender, or too many connections
    without keys), ``undecodable`` (bytes that no encoder of this run writes), ``bad_record`` (an
    invalid record of a payload, which ends the connection). With keys, outgoing messages:
    ``keyless`` (the key of the peer is not known yet). Incoming connections: ``unknown_key``,
    ``no_key``, ``stale_key`` (the other side has an old key of this peer), ``bad_handshake`` (all
    other failures, also without keys). Incoming messages: ``wrong_name`` (of another peer than the
    owner of the key), ``revoked_key``.

    ``sent_payload_bytes`` is the part of ``sent_bytes`` that belongs to payloads. Payloads in
    shared memory are in neither.

    ``notices`` has the notices that were not shown yet, one for each subject.
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
        """Add a notice, unless there was already one about this ``matter``, or there were very
        many. ``about``: peer that has no link to this one for the reason in the notice."""
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
    """Address of the control lane, which other peers connect to."""
    bulk: str
    """Address of the bulk lane."""
    traffic: Traffic
    link_timeout_s: float
    """Time without a frame after which a link is reported down, in seconds."""
    woken: bool
    """Whether one of the descriptors ``wake`` of the last ``poll`` was readable."""

    def connect(self, peer: PeerId, control: str, bulk: str) -> None:
        """Open both lanes to a peer, and close earlier ones to other addresses. ``LinkUp`` follows
        when both are connected.

        Lanes that are already open to these addresses are kept, and no event follows. An invalid
        address is counted (``bad_address``), because it may come from another peer.
        """
        ...

    def disconnect(self, peer: PeerId) -> None:
        """Close the lanes to a peer and drop their queue. No ``LinkDown`` follows."""
        ...

    def send(self, peer: PeerId, message: Message, payload: Payload | None = None) -> bool:
        """Queue a message. Return False if it was dropped, because there is no link or the queue is
        full.

        A large payload is not copied. Its memory must stay unchanged while ``in_flight`` returns
        True for it; the transport holds a reference to it until then.
        """
        ...

    def share(
        self, fd: int, memory: NDArray[np.uint8], room: ResultRoom, *, updates_stay: bool = False
    ) -> None:
        """Share ``memory`` with the peers on this host, which may map it by ``fd``. Payloads in
        shared memory need not be copied to be sent. ``fd`` must stay open. After this call, no
        process can map ``memory`` writable again. A transport may ignore the call. A later call
        replaces it.

        Args:
            room: Returns memory for received results.
            updates_stay: Received updates may stay in the read-only memory of their owner, which
                may change them at any time, so a reader must verify the bytes that it has read. The
                memory is in use as long as an array over it exists.
        """
        ...

    def poll(
        self, timeout_s: float, wake: Sequence[int] = (), awake_s: float = 0.0
    ) -> list[Arrival]:
        """Wait at most ``timeout_s`` for an arrival. Return all arrivals, in order for each sender
        and lane.

        Return at once, possibly without arrivals, if one of the file descriptors ``wake`` becomes
        readable. For the first ``awake_s`` the call may poll and yield the processor instead of
        sleeping, because a wake-up takes time.
        """
        ...

    def in_flight(self, data: object) -> bool:
        """Whether a send still reads the memory of this payload's ``data``."""
        ...

    def close(self, linger_s: float = 0.0) -> None:
        """Send queued messages for at most ``linger_s`` seconds, then close all sockets."""
        ...
