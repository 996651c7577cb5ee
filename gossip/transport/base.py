"""Guarantees of every transport. The behaviour suite in ``gossip.testing`` checks them for each
one.

A transport moves envelopes and payloads between peers that it knows by address. It is driven by one
thread and never blocks: ``send`` queues or drops, ``poll`` returns what has come. It checks sizes
before it stores a byte, and turns malformed input into a count, never into an exception.
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
"""Bytes that a message's payload must have, by what is known locally; -1 when none may come. A
payload of any other size is dropped before it is stored. ``StateOffer`` is the one message whose
``nbytes`` may be anything up to the limit."""


ResultRoom = Callable[[int, int, int], NDArray[np.uint8] | None]
"""Round, shard and size in bytes of a result -> memory of that size to receive it in;
None: there is none for it. It is in use for as long as any array over it lives."""

LINK_TIMEOUT_S = 0.3
FAR_LINK_TIMEOUT_S = 2.0
"""Timeouts of links within a host and between hosts, in seconds. See ``sockets`` for the
difference."""
AGAIN_S, AGAIN_MAX_S = 0.05, 1.0
"""Until a connection that failed is tried again: at first, and at most."""
NOTICES_MAX = 64


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that people should hear of, in words."""

    message: str
    hint: str
    about: PeerId | None = None


@dataclass
class Traffic:
    """Counts since the start. Units: messages and bytes.

    ``dropped`` counts by reason. By a fault that was injected, either way: ``cut``, ``lost``. On
    the way out: ``no_link`` (unknown peer, or no connection), ``full`` (too much is queued for that
    peer), ``bad_address``. On the way in: ``malformed`` (not a message), ``foreign_run`` (of
    another run), ``own_name`` (somebody else who claims to be us), ``wrong_lane``, ``spoken_to`` (a
    connection of ours, on which only we speak), ``unexpected`` (a payload where none may come),
    ``wrong_size``, ``too_large``, ``gap`` (a chunk that does not follow, or a payload that was
    never finished), ``unknown_transfer`` (a chunk of no payload), ``crowded`` (too many unfinished
    payloads of one sender), ``corrupt`` (the checksum does not fit), ``undecodable`` (no encoder
    of this run writes that). By keys, on the way out: ``keyless`` (no key of that peer is known
    yet); on the way in, connections: ``unknown_key``,
    ``no_key``, ``stale_key`` (it takes another key for ours), ``bad_handshake`` (anything else that
    is none), and messages: ``wrong_name`` (of another peer than the key's), ``revoked_key``,
    ``bad_record`` (of a payload, not as it was sealed, or not as it may be: it ended the
    connection).

    ``notices`` holds what is to be told to people and was not taken from there yet,
    each matter once.
    """

    sent_messages: int = 0
    sent_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.notices: deque[Notice] = deque()
        self._noted: set[object] = set()

    def note(self, matter: object, message: str, hint: str, about: PeerId | None = None) -> None:
        """Leaves a notice, unless there was one on this ``matter``, or very many. ``about``: whom
        we have no link to for it."""
        if matter not in self._noted and len(self._noted) < NOTICES_MAX:
            self._noted.add(matter)
            self.notices.append(Notice(message, hint, about))

    def settled(self, matter: object) -> None:
        """When it comes up again, there will be another notice."""
        self._noted.discard(matter)

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


class Transport(Protocol):
    control: str
    """Address of the control lane, as others must be told it."""
    bulk: str
    """Address of the bulk lane."""
    traffic: Traffic
    link_timeout_s: float
    """A link over which nothing comes for so long is reported down."""
    woken: bool
    """Whether one of the last ``poll``'s ``wake`` was readable."""

    def connect(self, peer: PeerId, control: str, bulk: str) -> None:
        """Opens both lanes to a peer, closing former ones at another address. ``LinkUp`` follows
        when they stand.

        Lanes that are open at these addresses already stay as they are, and nothing follows. An
        address that cannot be one is counted (``bad_address``): it may be a peer's word.
        """
        ...

    def disconnect(self, peer: PeerId) -> None:
        """Closes the lanes to a peer and forgets what is queued for it. No ``LinkDown`` follows."""
        ...

    def send(self, peer: PeerId, message: Message, payload: Payload | None = None) -> bool:
        """Queues a message. False when it was dropped: no link, or a full queue.

        The payload's memory is not copied when it is large: the caller keeps it unchanged until
        ``in_flight`` no longer counts it, which the transport ensures by holding a reference.
        """
        ...

    def share(
        self, fd: int, memory: NDArray[np.uint8], room: ResultRoom, *, updates_stay: bool = False
    ) -> None:
        """Payloads that lie in ``memory`` may stay there: peers of this host may map it, by ``fd``,
        which must stay open. Results that come may be received in ``room``. A hint, which may be
        ignored; another call replaces it.

        ``updates_stay``: updates that come may be handed in as they lie in their owner's memory,
        read-only. It may change them at any time, so whoever reads them makes sure of what it has
        read; and it has them in use for as long as any array over them lives.

        Nobody can map it writable afterwards who has not done so before.
        """
        ...

    def poll(
        self, timeout_s: float, wake: Sequence[int] = (), awake_s: float = 0.0
    ) -> list[Arrival]:
        """Waits up to ``timeout_s`` for something to come, returns all that has, in order for each
        sender and lane.

        Returns at once, perhaps with nothing, when one of the file descriptors ``wake`` becomes
        readable. For the first ``awake_s`` it may keep the processor, yielding it to others,
        instead of sleeping: to be woken takes a while.
        """
        ...

    def in_flight(self, data: object) -> bool:
        """Whether a send still reads the memory of this payload's ``data``."""
        ...

    def close(self, linger_s: float = 0.0) -> None:
        """Sends what is queued for at most ``linger_s``, then closes everything."""
        ...
