"""What stands for a payload in commits and offers: the first 16 bytes of its SHA-256.

Processors of the last years have instructions for SHA-256, which make it twice as fast as blake2b:
44 us against 84 for 69 KB. Small things (chains of commits, draws) stay with blake2b, which takes a
key and a length.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import Any

from .messages import DIGEST_BYTES


class Digest:
    """Of data that comes in parts."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = hashlib.sha256(usedforsecurity=True)

    def update(self, data: Any) -> None:
        self._hash.update(data)

    def digest(self) -> bytes:
        return self._hash.digest()[:DIGEST_BYTES]


class PartsDigest:
    """Of data that comes in pieces, and consists of parts that have ``lengths``; the last has
    whatever is left.

    Without lengths it is one part.
    """

    __slots__ = ("_done", "_several", "_to_come")

    def __init__(self, lengths: Sequence[int] = ()) -> None:
        self._several = bool(lengths)
        # what the present part lacks, and the lengths of the next ones but the last
        self._to_come = deque(lengths[:-1])
        self._done = [Digest()]

    def update(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        while self._to_come and len(view) >= self._to_come[0]:
            end = self._to_come.popleft()
            self._done[-1].update(view[:end])
            self._done.append(Digest())
            view = view[end:]
        if self._to_come:
            self._to_come[0] -= len(view)
        self._done[-1].update(view)

    def digests(self) -> tuple[bytes, tuple[bytes, ...]]:
        """Of all, which is of the digests of the parts when there are several; and these."""
        parts = tuple([part.digest() for part in self._done])
        return (digest_of(b"".join(parts)), parts) if self._several else (parts[0], ())


def digests_of(data: Any, lengths: Sequence[int] = ()) -> tuple[bytes, tuple[bytes, ...]]:
    """As ``PartsDigest``, of data that is here."""
    found = PartsDigest(lengths)
    found.update(data)
    return found.digests()


def digest_of(data: Any) -> bytes:
    """Of anything with contiguous memory. ``DIGEST_BYTES`` long."""
    return hashlib.sha256(data).digest()[:DIGEST_BYTES]
