"""Transfer of a large state in pieces, which several peers send at the same time.

The first part of a packed state, which is equal on all peers, is cut into pieces if it is larger
than one piece. The *outline* of the state is the manifest of its pieces, and peers attest the
outline. So each piece can be verified on arrival, whichever peer sent it. The other parts are
small, or are different on each peer, and are sent as a whole with the offer.

A state begins with its *base*: bytes that training does not change. No piece contains both bytes of
the base and other bytes, so states with the same base have the same pieces of the base. A receiver
fetches only the pieces that its own state does not contain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from struct import Struct
from typing import Any

from gossip.core.digests import digest_of
from gossip.core.events import Payload
from gossip.core.frozen import record
from gossip.core.messages import DIGEST_BYTES, PIECES_MAX, PeerId
from gossip.core.settings import PIECES_ASKED

_HEADER = Struct(">3Q")


@record
class PieceManifest:
    """Manifest of data that is cut into pieces: the length of the data, the length of a piece, and
    the digest of each piece in order. ``base``: length of the base, which is cut separately."""

    nbytes: int
    piece_bytes: int
    digests: tuple[bytes, ...]
    base: int = 0

    def packed(self) -> bytes:
        """Return the packed manifest. It is longer than any digest, so it cannot be mistaken for a
        digest."""
        return b"".join([_HEADER.pack(self.nbytes, self.piece_bytes, self.base), *self.digests])

    @staticmethod
    def read(data: bytes) -> PieceManifest | None:
        """Return the manifest that a peer has packed, or None if the data is not a valid
        manifest."""
        if len(data) < _HEADER.size:
            return None
        nbytes, piece_bytes, base = _HEADER.unpack_from(data)
        places = range(_HEADER.size, len(data), DIGEST_BYTES)
        digests = [data[at : at + DIGEST_BYTES] for at in places]
        if (
            not 1 < len(digests) <= PIECES_MAX
            or len(digests[-1]) != DIGEST_BYTES
            or piece_bytes < 1
            or base > nbytes
        ):
            return None
        found = PieceManifest(nbytes, piece_bytes, tuple(digests), base)
        return found if found.count == len(digests) else None

    @property
    def count(self) -> int:
        """Number of pieces, computed from the lengths."""
        return -(-self.base // self.piece_bytes) - (self.base - self.nbytes) // self.piece_bytes

    @property
    def edges(self) -> list[int]:
        """Start of each piece, and end of the last piece."""
        of_base = range(0, self.base, self.piece_bytes)
        return [*of_base, *range(self.base, self.nbytes, self.piece_bytes), self.nbytes]

    def bounds(self, piece: int) -> tuple[int, int]:
        """Return the start and end of a piece. Pieces are counted from 1."""
        edges = self.edges
        return edges[piece - 1], edges[piece]


def outline_of(payload: Payload) -> PieceManifest | None:
    """Return the outline of a packed state, or None if the state is not cut."""
    return (
        PieceManifest.read(payload.parts[0])
        if payload.parts and len(payload.parts[0]) > DIGEST_BYTES
        else None
    )


def cut(payload: Payload, outline: PieceManifest, piece: int) -> Payload:
    """Return a piece of a packed state. For ``piece == 0``, return the parts that are not cut into
    pieces."""
    if piece:
        start, stop = outline.bounds(piece)
        return Payload(payload.data[start:stop], stop - start, True, outline.digests[piece - 1])
    rest = payload.parts[1:]
    return Payload(
        payload.data[outline.nbytes :],
        payload.nbytes - outline.nbytes,
        True,
        digest_of(b"".join(rest)),
        rest,
    )


class PieceFetcher:
    """Stored pieces of one state, and the requests for its missing pieces.

    Attributes:
        asked: Deadline of each request, by peer and piece.
        lost: Peers that did not deliver and receive no further request.
    """

    def __init__(
        self,
        outline: PieceManifest,
        rest: Payload,
        kept: dict[bytes, Any],
        donors: Iterable[PeerId],
    ) -> None:
        """
        Args:
            rest: The parts of the state that are not cut into pieces.
            kept: Stored pieces of any state, by digest. Pieces that this state does not contain are
                dropped.
        """
        self.outline, self.rest = outline, rest
        for digest in kept.keys() - set(outline.digests):
            del kept[digest]
        self.kept = kept
        self.donors = tuple(donors)
        self.asked: dict[tuple[PeerId, int], float] = {}
        self.lost: set[PeerId] = set()

    @property
    def waits_for(self) -> set[PeerId]:
        return {peer for peer, _ in self.asked}

    @property
    def whole(self) -> bool:
        return all(digest in self.kept for digest in self.outline.digests)

    def ask(self, within_reach: Sequence[PeerId], until: float) -> list[tuple[PeerId, int]]:
        """Return the new requests, as pairs of peer and piece. Each donor gets one request before
        any donor gets a second request."""
        digests = self.outline.digests
        requested = {digests[piece - 1] for _, piece in self.asked}
        missing = []
        for piece, digest in enumerate(digests, 1):
            if digest not in self.kept and digest not in requested:
                requested.add(digest)  # equal pieces are requested once
                missing.append(piece)
        donors = [peer for peer in within_reach if peer in self.donors and peer not in self.lost]
        new = []
        for credit in range(1, PIECES_ASKED + 1):
            for peer in donors:
                if missing and sum([peer == other for other, _ in self.asked]) < credit:
                    new.append((peer, missing.pop(0)))
                    self.asked[new[-1]] = until
        return new

    def put_off(self, sender: PeerId, piece: int, until: float) -> None:
        """Extend the deadline of a piece that is in transfer."""
        if (sender, piece) in self.asked:
            self.asked[sender, piece] = until

    def length(self, sender: PeerId, piece: int) -> int:
        """Return the length of a requested piece in bytes; -1 if it was not requested from
        ``sender``."""
        if (sender, piece) not in self.asked:
            return -1
        start, stop = self.outline.bounds(piece)
        return stop - start

    def accept_piece(self, sender: PeerId, piece: int, payload: Payload) -> bool:
        """Store a requested piece. If the payload is not the requested piece, store nothing and
        return False."""
        right = (
            payload.nbytes == self.length(sender, piece)
            and payload.digest == self.outline.digests[piece - 1]
        )
        if right:
            del self.asked[sender, piece]
            self.kept[payload.digest] = payload.data
        return right

    def keep_own(self, payload: Payload) -> None:
        """Store the pieces that the packed local state has in common with this state."""
        if (own := outline_of(payload)) is None:
            return
        wanted = {*self.outline.digests}
        for digest, (start, stop) in zip(own.digests, pairwise(own.edges), strict=True):
            if digest in wanted:
                self.kept[digest] = payload.data[start:stop]

    def release(self, gone: Iterable[PeerId]) -> None:
        """Drop the requests to peers that will not deliver. These peers may receive requests again
        after their return."""
        peers = {*gone}
        self.asked = {ask: until for ask, until in self.asked.items() if ask[0] not in peers}

    def exclude_peers(self, peers: Iterable[PeerId]) -> None:
        """Drop the requests to peers, and send them no further requests."""
        self.lost |= {*peers}
        self.release(self.lost)

    def overdue(self, now: float) -> list[PeerId]:
        return sorted({peer for (peer, _), until in self.asked.items() if until <= now})

    def joined(self) -> Payload:
        """Return the packed state: the stored pieces in order, then the other parts."""
        rest = self.rest
        parts = self.outline.packed(), *rest.parts
        data = *[self.kept[digest] for digest in self.outline.digests], rest.data
        return Payload(
            data, self.outline.nbytes + rest.nbytes, True, digest_of(b"".join(parts)), parts
        )
