"""S12 and S15: which pieces of a state a peer requests from donors, and how many requests and
replies are sent."""

from __future__ import annotations

from collections import Counter

import numpy as np

from gossip.core import Payload, PeerId, Received, Report, Send, StateOffer, StateRequest
from gossip.vectors import payload_digest
from gossip_lab.inspection import Inspection
from gossip_lab.simulation.checkers.base import (
    Checker,
    PerIncarnation,
    keep_latest,
    on_effect,
    on_event,
    on_report,
)

CREDIT_MAX = 2
REPLIES_MAX = 4
REQUESTS_MAX = 4
KEPT = 512


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
    _present_pieces = PerIncarnation(set[bytes])  # digests of the pieces that it has
    _false_donors = PerIncarnation(set[PeerId])  # donors that have sent a wrong piece

    @on_event
    def record_piece(self, event: Received, offer: StateOffer) -> None:
        found = _right_piece(self.core, event, offer)
        if found:
            self._present_pieces.add(found)
        elif found is not None:
            self._false_donors.add(event.sender)

    @on_report("recovering", "restored")
    def forget(self, report: Report) -> None:
        self.begin_incarnation()

    @on_effect
    def judge(self, send: Send, ask: StateRequest) -> None:
        recovery = self.core.recovery
        pieces = self.core.recovery.pieces
        piece = ask.piece
        here, false = self._present_pieces, self._false_donors
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
    """S15: in one state transfer, a peer requests the same piece from the same donor at most
    ``REQUESTS_MAX`` times, whatever the donor replies."""

    invariant = "S15"
    # (donor, nonce, piece) -> number of requests
    _times_sent = PerIncarnation(Counter[tuple[PeerId, int, int]])

    @on_effect
    def judge(self, send: Send, ask: StateRequest) -> None:
        if not ask.piece:
            return
        key, times = (send.peer, ask.nonce, ask.piece), self._times_sent
        times[key] += 1
        self.demand(
            times[key] <= REQUESTS_MAX,
            f"requests piece {ask.piece} of a state from peer {send.peer} for the {times[key]}th "
            "time",
        )
        keep_latest(times, KEPT)


class BoundedPieceReplies(Checker):
    """S15: a peer sends another peer the same piece of a copy of its state, or the same complete
    copy, at most four times, however often it is requested. A peer that has received a piece does
    not need it again."""

    invariant = "S15"
    # Round -> (copy, number of times that each (receiver, piece) was sent).
    _replies = PerIncarnation(dict[int, tuple[Payload, Counter[tuple[PeerId, int]]]])

    @on_effect
    def judge(self, send: Send, offer: StateOffer) -> None:
        copy = self.core.recovery.copies.get(offer.round_id)
        if copy is None or not offer.digest:
            return  # this copy is not stored for further requests
        payload = copy.taken.payload
        known = self._replies.get(offer.round_id)
        if known is None or known[0] is not payload:
            known = self._replies[offer.round_id] = payload, Counter()
        what = send.peer, offer.piece
        known[1][what] += 1
        self.demand(
            known[1][what] <= REPLIES_MAX,
            f"sends peer {send.peer} piece {offer.piece} of its state before round "
            f"{offer.round_id} for the {known[1][what]}th time",
        )
