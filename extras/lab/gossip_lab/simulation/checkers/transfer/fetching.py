"""S12 and S15: of whom a peer asks which pieces of a state, how often,
and how often it gives them."""

from __future__ import annotations

from collections import Counter, deque
from math import ceil

import numpy as np

from gossip.core import (
    Effect,
    Event,
    Payload,
    PeerId,
    Received,
    Report,
    Send,
    StateOffer,
    StateRequest,
)
from gossip.vectors import payload_digest
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.world import AnySwarm

CREDIT_MAX = 2
GIVEN_MAX = 4

TIMES = 2.0
"""How often who fails may be asked again is an estimate: so much more of it is too much."""


def _right_piece(swarm: AnySwarm, peer: PeerId, event: Event) -> bytes | None:
    """Digest of what has come when ``peer`` has asked for it as a piece, b"" when that is another
    one; None: it has not, or nothing has come."""
    core = swarm.inspections.get(peer)
    if core is None or not isinstance(event, Received) or not isinstance(event.message, StateOffer):
        return None
    offer, pieces = event.message, core.recovery.pieces
    if (
        event.payload is None
        or not offer.digest
        or pieces is None
        or pieces.length(event.sender, offer.piece) < 0
    ):
        return None
    if offer.nonce != core.recovery.nonce or core.recovery.stage != "asking":
        return None
    found = payload_digest(np.asarray(event.payload.data))
    return found if found == pieces.outline.digests[offer.piece - 1] else b""


class AsksForWhatIsMissing(Checker):
    """S12: of a state in pieces nobody is asked for one that is here, nor who has sent a wrong one,
    nor one donor for more than two at a time."""

    invariant = "S12"
    events = (StateOffer,)
    effects = (StateRequest, Report)

    def make_records(self) -> None:
        self._here = self.per_life(set[bytes])  # digests of pieces
        self._false = self.per_life(set[PeerId])  # who have sent a wrong one

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        found = _right_piece(swarm, peer, event)
        if found:
            self._here[peer].add(found)
        elif found is not None and isinstance(event, Received):
            self._false[peer].add(event.sender)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        core = swarm.inspections.get(peer)
        if isinstance(effect, Report):
            if effect.event in ("recovering", "restored"):
                self.on_start(swarm, peer)
            return
        if (
            core is None
            or not isinstance(effect, Send)
            or not isinstance(effect.message, StateRequest)
        ):
            return
        pieces, piece = core.recovery.pieces, effect.message.piece
        if effect.message.what == "state" and not piece and core.recovery.attestation is None:
            self._false[peer].discard(effect.peer)  # nobody has vouched: each has its turn again
        if not piece or pieces is None:
            return
        self._here[peer] &= {*pieces.outline.digests}
        under_way = sum([donor == effect.peer for donor, _ in pieces.asked])
        what = f"asks peer {effect.peer} for piece {piece} of a state"
        self.judged += 1
        if pieces.outline.digests[piece - 1] in self._here[peer]:
            raise self.violated(swarm, peer, f"{what}, which is here")
        if effect.peer in self._false[peer]:
            raise self.violated(swarm, peer, f"{what}, having had a wrong one of it")
        if under_way > CREDIT_MAX:
            raise self.violated(swarm, peer, f"{what}, and it has to send {under_way} then")


class FetchesInMeasure(Checker):
    """S15: in no second is a donor asked for more pieces than have come from it and been right, and
    its credit for each time that one who fails may be asked again. So however soon an answer comes
    that is of no use, it is not worth a question at once."""

    invariant = "S15"
    events = (StateOffer,)
    effects = (StateRequest,)

    def make_records(self) -> None:
        self._asked = self.per_life(dict[PeerId, deque[float]])  # who, by whom: when
        self._right = self.per_life(dict[PeerId, deque[float]])

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if isinstance(event, Received) and _right_piece(swarm, peer, event):
            self._right[peer].setdefault(event.sender, deque()).append(swarm.now)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if (
            not isinstance(effect, Send)
            or not isinstance(effect.message, StateRequest)
            or not effect.message.piece
        ):
            return
        membership = swarm.hosts[peer].membership
        if membership is None:
            return
        asked = self._asked[peer].setdefault(effect.peer, deque())
        right = self._right[peer].setdefault(effect.peer, deque())
        asked.append(swarm.now)
        for times in (asked, right):
            while times and times[0] <= swarm.now - 1.0:
                times.popleft()
        most = ceil(TIMES * CREDIT_MAX * (1.0 + 1.0 / membership.settings.probe_interval_s))
        text = (
            f"asks peer {effect.peer} for {len(asked)} pieces in a second, of which {len(right)} "
            "have come"
        )
        self.demand(len(asked) <= len(right) + most, swarm, peer, f"{text}; {most} more are enough")


class GivesInMeasure(Checker):
    """S15: nobody is given the same piece of the same copy of a state, or the same whole, more than
    four times, however often it asks: who does not lose what it is sent has no use for it."""

    invariant = "S15"
    effects = (StateOffer,)

    def make_records(self) -> None:
        # by round: the copy, to whom what
        self._given = self.per_life(dict[int, tuple[Payload, Counter[tuple[PeerId, int]]]])

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        core = swarm.inspections.get(peer)
        if (
            core is None
            or not isinstance(effect, Send)
            or not isinstance(effect.message, StateOffer)
            or not effect.message.digest
        ):
            return
        offer = effect.message
        copy = core.recovery.copies.get(offer.round_id)
        if copy is None:
            return  # it is not kept for anybody to ask again
        known = self._given[peer].get(offer.round_id)
        if known is None or known[0] is not copy.taken.payload:
            known = self._given[peer][offer.round_id] = copy.taken.payload, Counter()
        known[1][effect.peer, offer.piece] += 1
        times = known[1][effect.peer, offer.piece]
        text = (
            f"gives peer {effect.peer} piece {offer.piece} of its state before round "
            f"{offer.round_id} for the {times}th time"
        )
        self.demand(times <= GIVEN_MAX, swarm, peer, text)
