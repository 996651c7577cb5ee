"""S12 and S15: which pieces of a state a peer requests from donors, and how many requests and
replies are sent."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from math import ceil

import numpy as np

from gossip.core import (
    Inspection,
    Payload,
    PeerId,
    Received,
    Report,
    Send,
    StateOffer,
    StateRequest,
)
from gossip.vectors import payload_digest
from gossip_lab.simulation.checkers.base import Checker, PerIncarnation
from gossip_lab.simulation.checkers.event_observer import on_effect, on_event, on_report

CREDIT_MAX = 2
REPLIES_MAX = 4

TOLERANCE_FACTOR = 2.0
"""Tolerated multiple of the estimated number of requests that are repeated because a donor
fails."""


def _right_piece(core: Inspection, event: Received, offer: StateOffer) -> bytes | None:
    """Return the digest of a received piece that the peer has requested. Return b"" if the piece is
    wrong, and None if the message has no requested piece."""
    recovery, pieces = core.recovery, core.recovery.pieces
    if event.payload is None or not offer.digest or pieces is None:
        return None
    if pieces.length(event.sender, offer.piece) < 0:
        return None
    if offer.nonce != recovery.nonce or recovery.stage != "asking":
        return None
    found = payload_digest(np.asarray(event.payload.data))
    return found if found == pieces.outline.digests[offer.piece - 1] else b""


class NoRedundantPieceRequests(Checker):
    """S12: a peer requests no piece that it already has, and no piece from a donor that has sent a
    wrong piece. It requests at most two pieces at a time from one donor."""

    invariant = "S12"
    _here = PerIncarnation(set[bytes])  # digests of the pieces that it has
    _false = PerIncarnation(set[PeerId])  # donors that have sent a wrong piece

    @on_event
    def record_piece(self, event: Received, offer: StateOffer) -> None:
        found = _right_piece(self.core, event, offer)
        if found:
            self._here.add(found)
        elif found is not None:
            self._false.add(event.sender)

    @on_report("recovering", "restored")
    def forget(self, report: Report) -> None:
        self.begin_incarnation()

    @on_effect
    def judge(self, send: Send, ask: StateRequest) -> None:
        recovery, pieces, piece = self.core.recovery, self.core.recovery.pieces, ask.piece
        here, false = self._here, self._false
        if ask.what == "state" and not piece and recovery.attestation is None:
            false.discard(send.peer)  # without an attestation every donor may be used again
        if not piece or pieces is None:
            return
        here &= {*pieces.outline.digests}
        under_way = sum([donor == send.peer for donor, _ in pieces.asked])
        what = f"requests piece {piece} of a state from peer {send.peer}"
        self.demand(pieces.outline.digests[piece - 1] not in here, f"{what}, which it has")
        if send.peer in false:
            raise self.violated(f"{what}, which has sent a wrong piece")
        if under_way > CREDIT_MAX:
            raise self.violated(f"{what}, which then has to send {under_way}")


class BoundedPieceRequests(Checker):
    """S15: within a second, a peer requests at most as many pieces from a donor as it receives
    right pieces from it, plus a constant. The constant allows for repeated requests to a failing
    donor. After a useless reply, the peer does not repeat its request at once."""

    invariant = "S15"
    _asked = PerIncarnation(lambda: defaultdict[PeerId, deque[float]](deque))
    _right = PerIncarnation(lambda: defaultdict[PeerId, deque[float]](deque))

    @on_event
    def record_piece(self, event: Received, offer: StateOffer) -> None:
        if _right_piece(self.core, event, offer):
            self._right[event.sender].append(self.now)

    @on_effect
    def judge(self, send: Send, ask: StateRequest) -> None:
        if not ask.piece:
            return
        asked, right = self._asked[send.peer], self._right[send.peer]
        asked.append(self.now)
        for times in (asked, right):
            while times and times[0] <= self.now - 1.0:
                times.popleft()
        turns = 1.0 / self.membership.settings.probe_interval_s
        most = ceil(TOLERANCE_FACTOR * CREDIT_MAX * (1.0 + turns))
        self.demand(
            len(asked) <= len(right) + most,
            f"requests {len(asked)} pieces in a second from peer {send.peer}, of which "
            f"{len(right)} have arrived; {most} more are enough",
        )


class BoundedPieceReplies(Checker):
    """S15: a peer sends another peer the same piece of a copy of its state, or the same complete
    copy, at most four times, however often it is requested. A peer that has received a piece does
    not need it again."""

    invariant = "S15"
    # Round -> (copy, number of times that each (receiver, piece) was sent).
    _given = PerIncarnation(dict[int, tuple[Payload, Counter[tuple[PeerId, int]]]])

    @on_effect
    def judge(self, send: Send, offer: StateOffer) -> None:
        copy = self.core.recovery.copies.get(offer.round_id)
        if copy is None or not offer.digest:
            return  # this copy is not stored for further requests
        payload = copy.taken.payload
        known = self._given.get(offer.round_id)
        if known is None or known[0] is not payload:
            known = self._given[offer.round_id] = payload, Counter()
        what = send.peer, offer.piece
        known[1][what] += 1
        self.demand(
            known[1][what] <= REPLIES_MAX,
            f"sends peer {send.peer} piece {offer.piece} of its state before round "
            f"{offer.round_id} for the {known[1][what]}th time",
        )
