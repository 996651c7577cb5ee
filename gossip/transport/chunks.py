"""A payload on the wire: a first frame with its size and checksum, then chunks, each numbered, of 1
MiB over ZeroMQ.

    first  [FIRST: 0xC1, transfer, nbytes, checksum] + envelope followed by the frame of chunk 0
    next   [NEXT: 0xC3, transfer, index] followed by the frame of chunk ``index``
    plain  envelope alone (begins with 0x96, msgpack's array of six)

Over unix sockets, which copy at once, the checksum is 0 and is not checked. A large payload in
memory that can be shared is not sent (``lending``). Its receiver maps the memory and reports when
it has copied the payload:

    map      [NEXT: 0xC9, region, 0]             with the descriptor of the memory
    lent     [LENT: 0xCB, transfer, region, offset, nbytes] + envelope              alone
    returned [NEXT: 0xCD, transfer, 0]           the other way; 1 in place of 0: it was not copied,
                                                 since that memory is not mapped there

Between peers with keys each of these frames is a record of its own, sealed (``sessions``).

Whole messages of 100 MB run at a third of the speed of chunks (docs/design_notes.md N17), and a
ping would wait behind them.
"""

from __future__ import annotations

import struct
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES = 2**20
CHUNKS, CHUNK_BYTES_LEAST = 16, 2**16
"""Number of chunks of a payload that is shorter than as many chunks of a MiB, and their least size,
64 KiB. Over a slow link, the chunks show that the payload moves. Otherwise nothing would explain
why a ping that waits behind it is not answered."""
_ALIGNED_BYTES = 2**12

FIRST_MARK = 0xC1  # msgpack never uses it
NEXT_MARK = 0xC3
MAP_MARK = 0xC9
LENT_MARK = 0xCB
RETURNED_MARK = 0xCD
OFFER_MARK = 0xCF  # on the control lane: ``sessions``
COPIED, UNMAPPED = 0, 1
FIRST = struct.Struct("<BxxxIQQ")
NEXT = struct.Struct("<BxxxII")
LENT = struct.Struct("<BxxxIIQQ")

_transfers = count(1)


def chunk_of(nbytes: int, most: int = CHUNK_BYTES) -> int:
    """Return the bytes of each chunk of a payload except the last. Both ends compute it from the
    length of the payload.

    Args:
        most: Largest chunk of the lane. If it is less than a MiB, as within a host, all chunks have
            this length.
    """
    if most < CHUNK_BYTES:
        return most
    even = -(-nbytes // CHUNKS)
    return min(most, max(CHUNK_BYTES_LEAST, -(-even // _ALIGNED_BYTES) * _ALIGNED_BYTES))


def bytes_of(data: Any) -> NDArray[np.uint8]:
    """Return the memory of an array as bytes, without a copy. Raise ValueError if it is not
    contiguous."""
    return np.frombuffer(data, dtype=np.uint8)


def view_of(memory: NDArray[np.uint8]) -> memoryview:
    """Return the same memory as a memoryview, writable if the array is."""
    view: memoryview = memory.data
    return view


def checksum(data: NDArray[np.uint8]) -> int:
    """Return the sum of the 64-bit words, modulo 2**64. Checksums of parts add up if all but the
    last are whole words.

    It detects flipped bits, and a buffer that was changed while it was sent. Measured on 69 KB: 2
    us, where crc32 takes 18. It does not protect from a Byzantine sender; the digest of a commit
    does.
    """
    whole = len(data) & ~7
    words = int(np.add.reduce(data[:whole].view(np.uint64), dtype=np.uint64))
    return (words + int.from_bytes(data[whole:].tobytes(), "little")) & 0xFFFF_FFFF_FFFF_FFFF


def new_transfer() -> int:
    """Return the number of a new transfer."""
    return next(_transfers) & 0xFFFF_FFFF


class Outgoing:
    """Outgoing message of the bulk lane, cut into pairs of frames. ``view`` is None without a
    payload."""

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
        holder: NDArray[np.uint8] | None,
        sum_of_payload: int = 0,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.lent = False
        # a separate array object, which lives exactly as long as a chunk of it is being sent
        self.holder = holder
        self.sent = self.index = self.header_bytes = 0
        if holder is None:
            self.nbytes, self.view, self.plain, self.transfer = 0, None, envelope, 0
        else:
            self.nbytes, self.view = len(holder), view_of(holder)
            self.transfer = new_transfer()
            self.plain = (
                FIRST.pack(FIRST_MARK, self.transfer, self.nbytes, sum_of_payload) + envelope
            )
        self.chunk_bytes = chunk_of(self.nbytes, chunk_bytes)

    @classmethod
    def lending(
        cls, envelope: bytes, holder: NDArray[np.uint8], region: int, offset: int
    ) -> Outgoing:
        """Return a message with a payload that is not sent: it is at ``offset`` in the shared
        memory with the number ``region``."""
        lent = cls(envelope, None)
        lent.lent, lent.holder, lent.transfer = True, holder, new_transfer()
        lent.nbytes = lent.chunk_bytes = len(holder)
        lent.plain = LENT.pack(LENT_MARK, lent.transfer, region, offset, lent.nbytes) + envelope
        return lent

    def frames(self) -> tuple[bytes, memoryview | None]:
        """Return the next header and chunk. Call ``advance`` after they were sent."""
        header = self.plain if self.index == 0 else NEXT.pack(NEXT_MARK, self.transfer, self.index)
        self.header_bytes = len(header)
        return header, None if self.view is None else self.view[
            self.sent : self.sent + self.chunk_bytes
        ]

    def advance(self) -> bool:
        """Move to the next chunk. Return whether that was the last one."""
        self.index += 1
        self.sent += self.chunk_bytes
        return self.sent >= self.nbytes
