"""A large state in pieces: what stands for it, and gathering its pieces from several peers at once.

What all peers hold alike, the first part of a packed state, is cut into pieces when it is larger
than one. What stands for it is its *outline*, which those who vouch vouch for: so every piece can
be checked by itself as soon as it is there, whoever sends it. The other parts are small or
everybody's own, and come whole with the offer.

A state begins with its *base*, which training does not change. No piece has bytes of the base and
others, so states with the same base have the same pieces of it, and a taker fetches only the pieces
that its own state has not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from gossip.core.digests import digest_of
from gossip.core.events import Payload
from gossip.core.frozen import record
from gossip.core.messages import DIGEST_BYTES, PIECES_MAX, PeerId

PIECE_BYTES = 2**23
"""Size of a piece in bytes, except for the last piece, and for states of more than ``PIECES_MAX``
of them."""

CREDIT = 2
"""Pieces that one donor is asked for at a time: one that is on its way, and one that follows it
without a pause."""

_NUMBER = 8  # bytes
_HEADER = 3 * _NUMBER


@record
class PieceManifest:
    """Manifest of data that is cut into pieces: its length, that of a piece, and the digest of each
    piece in order. ``base``: bytes at its front that are cut by themselves."""

    nbytes: int
    piece_bytes: int
    digests: tuple[bytes, ...]
    base: int = 0

    def packed(self) -> bytes:
        """Longer than any digest: nothing else can be taken for it."""
        numbers = self.nbytes, self.piece_bytes, self.base
        return b"".join([*[each.to_bytes(_NUMBER, "big") for each in numbers], *self.digests])

    @staticmethod
    def read(data: bytes) -> PieceManifest | None:
        """None when it is none, whatever a peer may have sent."""
        nbytes, piece_bytes, base = [
            int.from_bytes(data[at : at + _NUMBER], "big") for at in range(0, _HEADER, _NUMBER)
        ]
        digests = [data[at : at + DIGEST_BYTES] for at in range(_HEADER, len(data), DIGEST_BYTES)]
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
        """Number of pieces, by the lengths."""
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
    """None: it is not cut."""
    return (
        PieceManifest.read(payload.parts[0])
        if payload.parts and len(payload.parts[0]) > DIGEST_BYTES
        else None
    )


def cut(payload: Payload, outline: PieceManifest, piece: int) -> Payload:
    """A piece of a packed state, or with 0 all but its pieces."""
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
    """The pieces of one state: which are here, and who is asked for which of the others.

    Attributes:
        asked: Who, for which piece -> until when it may take.
        lost: Who has not delivered, and is not asked again.
    """

    def __init__(
        self, outline: PieceManifest, kept: dict[bytes, Any], donors: Iterable[PeerId]
    ) -> None:
        """``kept``: what is here already, by digest, of whatever state; what this one has no use
        for is forgotten."""
        self.outline = outline
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
        """Return the new requests, beside those under way: pairs of peer and piece. Each donor gets
        one first, then another."""
        digests = self.outline.digests
        under_way = {digests[piece - 1] for _, piece in self.asked}
        missing = []
        for piece, digest in enumerate(digests, 1):
            if digest not in self.kept and digest not in under_way:
                under_way.add(digest)  # pieces that are alike come once
                missing.append(piece)
        donors = [peer for peer in within_reach if peer in self.donors and peer not in self.lost]
        fresh = []
        for credit in range(1, CREDIT + 1):
            for peer in donors:
                if missing and sum([peer == other for other, _ in self.asked]) < credit:
                    fresh.append((peer, missing.pop(0)))
                    self.asked[fresh[-1]] = until
        return fresh

    def put_off(self, sender: PeerId, piece: int, until: float) -> None:
        """It is on its way: ``sender`` may take longer."""
        if (sender, piece) in self.asked:
            self.asked[sender, piece] = until

    def length(self, sender: PeerId, piece: int) -> int:
        """Bytes of what ``sender`` was asked for; -1: it was not."""
        if (sender, piece) not in self.asked:
            return -1
        start, stop = self.outline.bounds(piece)
        return stop - start

    def accept_piece(self, sender: PeerId, piece: int, payload: Payload) -> bool:
        """Whether this is what was asked for. Then it is kept."""
        right = (
            payload.nbytes == self.length(sender, piece)
            and payload.digest == self.outline.digests[piece - 1]
        )
        if right:
            del self.asked[sender, piece]
            self.kept[payload.digest] = payload.data
        return right

    def keep_own(self, payload: Payload) -> None:
        """Keep the pieces that a packed state of our own has, too."""
        if (own := outline_of(payload)) is None:
            return
        wanted = {*self.outline.digests}
        for digest, (start, stop) in zip(own.digests, pairwise(own.edges), strict=True):
            if digest in wanted:
                self.kept[digest] = payload.data[start:stop]

    def release(self, gone: Iterable[PeerId]) -> None:
        """Drop the requests to peers that will not deliver. They may get requests again when they
        are back."""
        peers = {*gone}
        self.asked = {ask: until for ask, until in self.asked.items() if ask[0] not in peers}

    def exclude_peers(self, peers: Iterable[PeerId]) -> None:
        """They are not asked again."""
        self.lost |= {*peers}
        self.release(self.lost)

    def overdue(self, now: float) -> list[PeerId]:
        return sorted({peer for (peer, _), until in self.asked.items() if until <= now})

    def joined(self, rest: Payload) -> Payload:
        """The packed state, of which ``rest`` are the other parts. Its data is that of its pieces,
        one after the other."""
        parts = self.outline.packed(), *rest.parts
        data = *[self.kept[digest] for digest in self.outline.digests], rest.data
        return Payload(
            data, self.outline.nbytes + rest.nbytes, True, digest_of(b"".join(parts)), parts
        )
