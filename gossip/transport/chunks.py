"""Format of payloads on the wire: a first header with the size, and numbered chunks.

    first  [FIRST: 0xC1, transfer, nbytes] + envelope    followed by chunk 0
    next   [NEXT: 0xC3, transfer, index]                 followed by chunk ``index``
    plain  envelope alone (begins with 0x96, msgpack's array of six)

On one host, a large payload in shared memory is not sent (``lending``). Its receiver maps the
memory and reports when it has copied the payload:

    map      [NEXT: 0xC9, region, 0]             with the descriptor of the memory
    lent     [LENT: 0xCB, transfer, region, offset, nbytes] + envelope              alone
    returned [NEXT: 0xCD, transfer, 0]           in reply; 1 instead of 0 if the payload was not
                                                 copied, because the memory is not mapped

Between hosts, each header and each chunk is a sealed record (``sessions``).

A chunk is received directly into its place in the payload. A ping waits at most for a chunk, not
for a whole payload.
"""

from __future__ import annotations

import struct
from itertools import count

from gossip.vectors import ByteArray

CHUNK_BYTES = 2**20
CHUNKS, CHUNK_BYTES_LEAST = 16, 2**16
"""Minimum number of chunks into which a payload is divided, and minimum size of a chunk in bytes.
If both cannot be met, the minimum size is. Over a slow link, arriving chunks show that a payload is
in transfer. Without them, a peer that does not reply to pings in time because of the payload would
seem dead."""
_ALIGNED_BYTES = 2**12

FIRST_MARK = 0xC1  # msgpack never uses it
NEXT_MARK = 0xC3
MAP_MARK = 0xC9
LENT_MARK = 0xCB
RETURNED_MARK = 0xCD
OFFER_MARK = 0xCF  # used on the control lane (``sessions``)
COPIED, UNMAPPED = 0, 1
FIRST = struct.Struct("<BxxxIQ")
NEXT = struct.Struct("<BxxxII")
LENT = struct.Struct("<BxxxIIQQ")

_transfers = count(1)


def chunk_of(nbytes: int, most: int = CHUNK_BYTES) -> int:
    """Return the length in bytes of each chunk of a payload except the last chunk. Both ends
    compute it from the length of the payload.

    Args:
        most: Maximum size of a chunk of the lane. If it is below 1 MiB, as within a host, all
            chunks have this length.
    """
    if most < CHUNK_BYTES:
        return most
    even = -(-nbytes // CHUNKS)
    return min(most, max(CHUNK_BYTES_LEAST, -(-even // _ALIGNED_BYTES) * _ALIGNED_BYTES))


def view_of(memory: ByteArray) -> memoryview:
    """Return the same memory as a memoryview, which is writable if the array is."""
    view: memoryview = memory.data
    return view


def new_transfer() -> int:
    """Return the number of a new transfer."""
    return next(_transfers) & 0xFFFF_FFFF


class Outgoing:
    """Outgoing message of the bulk lane, as headers and chunks. ``view`` is None if there is no
    payload to send."""

    __slots__ = (
        "chunk_bytes",
        "header_bytes",
        "holder",
        "index",
        "lent",
        "nbytes",
        "plain",
        "sent",
        "transfer",
        "view",
    )

    def __init__(
        self,
        envelope: bytes,
        holder: ByteArray | None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.lent = False
        # A separate array object over the payload. It exists exactly as long as the payload is
        # being sent (``links.BuffersInFlight``).
        self.holder = holder
        self.sent = self.index = self.header_bytes = 0
        if holder is None:
            self.nbytes, self.view, self.plain, self.transfer = 0, None, envelope, 0
        else:
            self.nbytes, self.view = len(holder), view_of(holder)
            self.transfer = new_transfer()
            self.plain = FIRST.pack(FIRST_MARK, self.transfer, self.nbytes) + envelope
        self.chunk_bytes = chunk_of(self.nbytes, chunk_bytes)

    @classmethod
    def lending(cls, envelope: bytes, holder: ByteArray, region: int, offset: int) -> Outgoing:
        """Return a message without the bytes of its payload, because the receiver reads them in
        shared memory. They are at ``offset`` in the memory with the number ``region``."""
        lent = cls(envelope, None)
        lent.lent, lent.holder, lent.transfer = True, holder, new_transfer()
        lent.nbytes = lent.chunk_bytes = len(holder)
        lent.plain = LENT.pack(LENT_MARK, lent.transfer, region, offset, lent.nbytes) + envelope
        return lent

    def frames(self) -> tuple[bytes, memoryview | None]:
        """Return the next header and chunk. Call ``advance`` after both were sent."""
        header = self.plain if self.index == 0 else NEXT.pack(NEXT_MARK, self.transfer, self.index)
        self.header_bytes = len(header)
        return header, None if self.view is None else self.view[
            self.sent : self.sent + self.chunk_bytes
        ]

    def advance(self) -> bool:
        """Advance to the next chunk. Return whether the chunk before was the last."""
        self.index += 1
        self.sent += self.chunk_bytes
        return self.sent >= self.nbytes
