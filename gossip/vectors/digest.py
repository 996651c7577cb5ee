"""Digests of payloads in commits and offers: the first 16 bytes of BLAKE3.

BLAKE3 is a tree hash. For long data it is three times as fast as SHA-256, even with the processor's
instructions for SHA-256 (4.8 GB/s and 1.7 GB/s on one core, 64 MiB). The data of the core itself
and the chains of commits are short, so their digest uses only the standard library
(``gossip.core.digest_of``).

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
    """Return the digest of ``data``, ``DIGEST_BYTES`` bytes. The memory of ``data`` must be
    contiguous."""
    return blake3(_bytes_of(data)).digest(DIGEST_BYTES)


class PayloadDigest:
    """Digest of data that arrive in blocks."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = blake3()

    def update(self, data: Any) -> None:
        self._hash.update(_bytes_of(data))

    def digest(self) -> bytes:
        return self._hash.digest(DIGEST_BYTES)


class PartsDigest:
    """Digest of data that arrive in blocks and consist of parts. ``lengths``: length of each part
    in bytes; the last part has all remaining bytes.

    Without ``lengths``, the data are a single part.
    """

    __slots__ = ("_done", "_several", "_to_come")

    def __init__(self, lengths: Sequence[int] = ()) -> None:
        self._several = bool(lengths)
        # Number of missing bytes of the present part, then the lengths of the later parts; the last
        # part is omitted.
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
        """Return the digest of the whole data and the digests of the parts. With ``lengths``, the
        digest of the whole is ``digest_of`` applied to the digests of the parts. Without
        ``lengths``, no digests of parts are returned."""
        parts = tuple([part.digest() for part in self._done])
        return (digest_of(b"".join(parts)), parts) if self._several else (parts[0], ())


def digests_of(data: Any, lengths: Sequence[int] = ()) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the digests of ``data`` as ``PartsDigest.digests`` does."""
    found = PartsDigest(lengths)
    found.update(data)
    return found.digests()


def described(
    data: Any, lengths: Sequence[int], piece_bytes: int = PIECE_BYTES, base: int = 0
) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the digest of a packed state, and the digest of each part. If the first part is larger
    than a piece, its packed ``PieceManifest`` is returned instead of its digest.

    ``lengths``: length of each part in bytes. ``base``: see ``PieceManifest``.
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
    return view.cast("B") if view.nbytes else memoryview(b"")  # empty views cannot be cast
