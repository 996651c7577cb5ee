"""Guarantees of every transport. The behaviour suite in ``gossip.testing`` checks them for each
transport.

A transport moves envelopes and payloads between peers with addresses. It is driven by one thread
and never blocks: ``send`` queues or drops, ``poll`` returns the arrivals. It checks sizes before it
stores a byte, and turns malformed input into a count, never into an exception.
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
"""Function that returns the bytes that a message's payload must have; -1 if no payload may come. A
payload of any other size is dropped before it is stored. Only the ``nbytes`` of a ``StateOffer``
may be anything up to the limit."""


ResultRoom = Callable[[int, int, int], NDArray[np.uint8] | None]
"""Function from round, shard and size in bytes of a result to memory of that size to receive it in,
or None. The memory is in use for as long as any array over it lives."""

LINK_TIMEOUT_S = 0.3
FAR_LINK_TIMEOUT_S = 2.0
"""Timeouts of links within a host and between hosts, in seconds. See ``sockets`` for the
difference."""
AGAIN_S, AGAIN_MAX_S = 0.05, 1.0
"""First and longest pause before a failed connection is tried again, in seconds."""
NOTICES_MAX = 64


@dataclass(frozen=True, slots=True)
class Notice:
    """Message to users, with a hint."""

    message: str
    hint: str
    about: PeerId | None = None


@dataclass
class Traffic:
    """Counts since the start. Units: messages and bytes.

    ``dropped`` counts by reason. By a fault that was injected, either way: ``cut``, ``lost``. On
    the way out: ``no_link`` (unknown peer, or no connection), ``full`` (too much is queued for that
    peer), ``bad_address``. On the way in: ``malformed`` (not a message), ``foreign_run`` (of
    another run), ``own_name`` (another process that claims to be this peer), ``wrong_lane``,
    ``spoken_to`` (a frame on an outbound connection), ``unexpected`` (a payload that may not come),
    ``wrong_size``, ``too_large``, ``gap`` (a chunk that does not follow, or a payload that was
    never finished), ``unknown_transfer`` (a chunk of no payload), ``crowded`` (too many unfinished
    payloads of one sender, or too many connections without keys), ``undecodable`` (no encoder of
    this run writes that), ``bad_record`` (of a payload, not as it was sealed, or not as it may be:
    it ended the connection). By keys, on
    the way out: ``keyless`` (no key of that peer is known yet); on the way in, connections:
    ``unknown_key``, ``no_key``, ``stale_key`` (it has an old key for ours), ``bad_handshake`` (all
    other failures, also without keys), and messages: ``wrong_name`` (of another peer than the
    key's), ``revoked_key``.

    ``sent_payload_bytes`` is the part of payloads in ``sent_bytes``. Payloads that are lent through
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
        """Leave a notice, unless there was one on this ``matter``, or very many. ``about``: peer
        that this peer has no link to for that reason."""
        if matter not in self._noted and len(self._noted) < NOTICES_MAX:
            self._noted.add(matter)
            self.notices.append(Notice(message, hint, about))

    def settled(self, matter: object) -> None:
        """Allow another notice on ``matter``."""
        self._noted.discard(matter)

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


class Transport(Protocol):
    control: str
    """Address of the control lane, for other peers."""
    bulk: str
    """Address of the bulk lane."""
    traffic: Traffic
    link_timeout_s: float
    """Time in seconds without a frame after which a link is reported down."""
    woken: bool
    """Whether one of the last ``poll``'s ``wake`` was readable."""

    def connect(self, peer: PeerId, control: str, bulk: str) -> None:
        """Open both lanes to a peer, and close former ones at another address. ``LinkUp`` follows
        when they are connected.

        Lanes that are open at these addresses already stay as they are, and no event follows. An
        invalid address is counted (``bad_address``), because it may come from a peer.
        """
        ...

    def disconnect(self, peer: PeerId) -> None:
        """Close the lanes to a peer and drop its queue. No ``LinkDown`` follows."""
        ...

    def send(self, peer: PeerId, message: Message, payload: Payload | None = None) -> bool:
        """Queue a message. Return False if it was dropped: no link, or a full queue.

        A large payload is not copied: its memory must stay unchanged until ``in_flight`` no longer
        counts it. Until then the transport holds a reference.
        """
        ...

    def share(
        self, fd: int, memory: NDArray[np.uint8], room: ResultRoom, *, updates_stay: bool = False
    ) -> None:
        """Share ``memory`` with the peers of this host, which may map it by ``fd``. Payloads in it
        need not be copied to be sent. ``fd`` must stay open. This is a hint, which a transport may
        ignore; a later call replaces it. From now on no process can map ``memory`` writable again.

        Args:
            room: Memory for received results.
            updates_stay: Received updates may stay in the read-only memory of their owner, which
                may change them at any time. So a reader must verify the bytes that it has read. The
                memory is in use for as long as any array over it lives.
        """
        ...

    def poll(
        self, timeout_s: float, wake: Sequence[int] = (), awake_s: float = 0.0
    ) -> list[Arrival]:
        """Wait up to ``timeout_s`` for an arrival. Return all arrivals, in order for each sender
        and lane.

        Return at once, perhaps without arrivals, if one of the file descriptors ``wake`` becomes
        readable. For the first ``awake_s`` the call may poll and yield the processor instead of
        sleeping, because waking up takes time.
        """
        ...

    def in_flight(self, data: object) -> bool:
        """Whether a send still reads the memory of this payload's ``data``."""
        ...

    def close(self, linger_s: float = 0.0) -> None:
        """Send queued messages for at most ``linger_s``, then close all sockets."""
        ...
