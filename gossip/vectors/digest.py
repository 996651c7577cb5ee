"""Digest of a payload in commits and offers: the first 16 bytes of its BLAKE3.

BLAKE3 is a tree hash. For long data it is three times as fast as SHA-256 with the instructions that
processors have for SHA-256 (4.8 GB/s and 1.7 GB/s on one core, 64 MiB). It hashes each block while
the block is in the cache. Data of the core itself and chains of commits are short, so their digest
uses only the standard library (``gossip.core.digest_of``).

Source: O'Connor, Aumasson, Neves, Wilcox-O'Hearn 2020, "BLAKE3: one function, fast everywhere".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from blake3 import blake3

from gossip.core import DIGEST_BYTES, PIECE_BYTES, PIECES_MAX, PieceManifest, digest_of


def payload_digest(data: Any) -> bytes:
    """Return the digest of ``data``, ``DIGEST_BYTES`` long. The memory of ``data`` must be
    contiguous."""
    return blake3(_bytes_of(data)).digest(DIGEST_BYTES)


class PayloadDigest:
    """Digest of data that arrives in blocks."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = blake3()

    def update(self, data: Any) -> None:
        self._hash.update(_bytes_of(data))

    def digest(self) -> bytes:
        return self._hash.digest(DIGEST_BYTES)


class PartsDigest:
    """Digest of data that arrives in blocks and consists of parts with the given ``lengths``. The
    last part has all remaining bytes.

    Without lengths, the data is a single part.
    """

    __slots__ = ("_done", "_several", "_to_come")

    def __init__(self, lengths: Sequence[int] = ()) -> None:
        self._several = bool(lengths)
        # number of missing bytes of the present part, then the lengths of later parts except the
        # last
        self._to_come = deque(lengths[:-1])
        self._done = [PayloadDigest()]

    def update(self, data: Any) -> None:
        view = _bytes_of(data)
        while self._to_come and len(view) >= self._to_come[0]:
            end = self._to_come.popleft()
            self._done[-1].update(view[:end])
            self._done.append(PayloadDigest())
            view = view[end:]
        if self._to_come:
            self._to_come[0] -= len(view)
        self._done[-1].update(view)

    def digests(self) -> tuple[bytes, tuple[bytes, ...]]:
        """Return the digest of the whole and the digests of the parts. With lengths, the first is
        the core's digest (``digest_of``) of the others. Without lengths, there are no others."""
        parts = tuple([part.digest() for part in self._done])
        return (digest_of(b"".join(parts)), parts) if self._several else (parts[0], ())


def digests_of(data: Any, lengths: Sequence[int] = ()) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the digests of ``data`` in the form of ``PartsDigest.digests``."""
    found = PartsDigest(lengths)
    found.update(data)
    return found.digests()


def described(
    data: Any, lengths: Sequence[int], piece_bytes: int = PIECE_BYTES, base: int = 0
) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the digest of a packed state with parts of the given ``lengths``, and the digest or
    outline of each part.

    If the first part is no larger than a piece, this is ``digests_of``. ``base``: see
    ``PieceManifest``.
    """
    if len(lengths) < 2 or lengths[0] <= piece_bytes:
        return digests_of(data, lengths)
    whole = _bytes_of(data)
    outline = PieceManifest(lengths[0], piece_bytes, (), base)
    while outline.count > PIECES_MAX:
        outline = replace(outline, piece_bytes=2 * outline.piece_bytes)
    digests = [payload_digest(whole[start:stop]) for start, stop in pairwise(outline.edges)]
    parts = (
        replace(outline, digests=tuple(digests)).packed(),
        *digests_of(whole[lengths[0] :], lengths[1:])[1],
    )
    return digest_of(b"".join(parts)), parts


def _bytes_of(data: Any) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")  # an empty array cannot be cast
