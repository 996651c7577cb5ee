"""Donor of a state transfer: it attests its state, and sends it to peers that join, return or have
fallen behind.

The trainer copies its state between two rounds, once for all peers that request the state of this
round. All other work (packing, digests, sending) does not interrupt the trainer. A copy that was
attested, or that is sent in pieces, stays stored for some time, because further requests for it
follow.

The memory of a donor is bounded for any number of requests. It stores at most ``COPIES_MAX``
states, and sends payloads to at most ``TAKERS_MAX`` peers at a time. It sends each piece to the
same peer at most ``GIVEN_TIMES_MAX`` times.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from gossip.core.events import Effect, Payload, Report, Send, SnapshotTaken, TakeSnapshot
from gossip.core.frozen import record
from gossip.core.latest import Latest
from gossip.core.ledger import pack_json, stretch, unpack_json
from gossip.core.messages import (
    CORE_BYTES_MAX,
    DIGEST_BYTES,
    PeerId,
    StateAttestation,
    StateOffer,
    StateRequest,
)
from gossip.core.rounds import DonorRounds
from gossip.core.settings import (
    AWAITED_ROUNDS,
    COPIES_MAX,
    GIVEN_TIMES_MAX,
    REPLY_S,
    REQUESTED_AHEAD,
    TAKERS_MAX,
    CoreSettings,
)
from gossip.core.timers import Timers

from .chunks import cut, outline_of

NEVER = 2**63
OUTDATED = -2
"""Placeholder for the round of a requested copy, if no other peer will receive the copy, or if the
state was replaced after the request to the trainer."""

NO_STATE = "has no state"
TAKES_OVER = "is adopting another state itself"
BUSY = "is busy with other peers"
MOVED_ON = "no longer has the state of that round"
TOO_MUCH = "has a ledger that is too large for a message"
TOO_EARLY = "is not in that round"
ENOUGH = "has sent it too often already"
NO_SUCH_PIECE = "has no such piece"


def attested_digest(
    lineage: bytes, round_id: int, chain: bytes, core: bytes, state: bytes
) -> bytes:
    """Return the digest of the part of the state before ``round_id`` that is equal on all peers.

    Args:
        chain: H of the previous round.
        core: Packed roster, trust table and data cursor. The digest covers the unpacked text,
            because the compressed bytes depend on the implementation of zlib.
        state: Digest or outline of the first part of the packed state: parameters and optimizer
            state.
    """
    found = blake2b(digest_size=DIGEST_BYTES, person=b"gossip-state")
    for part in (lineage, round_id.to_bytes(8, "big"), chain, stretch(core), state):
        found.update(len(part).to_bytes(4, "big") + part)
    return found.digest()


def parts_of(payload: Payload) -> tuple[bytes, bytes]:
    """Return two values: the digest or outline of the part of the state that is equal on all peers,
    and the digest of the script settings, or b"" without settings."""
    parts = payload.parts or (payload.digest,)
    return parts[0], parts[1] if len(parts) > 1 else b""


def _is_again(request: StateRequest, waiting: StateRequest) -> bool:
    """Whether a request repeats the waiting request. If the waiting request named no round,
    ``waiting`` contains the round in which it arrived."""
    return request in (waiting, replace(waiting, round_id=0))


@record
class SnapshotExpired:
    """Timer for the removal of unused copies."""


@dataclass(slots=True)
class _HeldSnapshot:
    """Copy of the trainer's state before a round, with its ledger."""

    chain: bytes
    core: bytes
    taken: SnapshotTaken
    used_at: float
    # number of times that a piece was sent, by peer and piece
    given: Counter[tuple[PeerId, int]] = field(default_factory=Counter)


@dataclass(eq=False)
class Donor:
    """Donor side of state transfers, which handles requests for the state and for attestations."""

    settings: CoreSettings
    source: DonorRounds
    timers: Timers[Any]

    def __post_init__(self) -> None:
        self.next_requested_round = NEVER  # Earliest later round for which a request is waiting.
        # Waiting request of each peer, with the requested round filled in.
        self.asks: dict[PeerId, StateRequest] = {}
        self.copies: Latest[int, _HeldSnapshot] = Latest(COPIES_MAX)
        self._now: set[PeerId] = set()  # Peers with a waiting request that names no round.
        # Time of the last request of each receiver of pieces.
        self._takers: dict[PeerId, float] = {}
        # Present round, and number of times that a piece was sent in this round, by peer and piece.
        # ``_taken_until``: expected end of the transfer to each peer.
        self._given_in, self._given = -1, Counter[tuple[PeerId, int]]()
        self._taken_until: dict[PeerId, float] = {}
        # rounds of the open requests for a copy; the trainer replies in this order
        self._taking: deque[int] = deque()
        # snapshot of the rounds (without the trainer's state) for each round in ``_taking``
        self._beside: dict[int, tuple[bytes, tuple[Any, ...]] | None] = {}
        self._sweeps = False
        self.closing = False  # whether no further round follows

    def close(self) -> list[Effect]:
        """Reject requests for later rounds, because no further round follows."""
        self.closing = True
        waiting = [
            (peer, ask) for peer, ask in self.asks.items() if ask.round_id > self.source.round_id
        ]
        for peer, _ in waiting:
            self._drop_request(peer)
        self._update_next_requested()
        return [self._refuse(peer, ask, TOO_EARLY) for peer, ask in waiting]

    def expect_rounds(self, come: bool) -> None:
        """Set whether further rounds follow."""
        self.closing = not come

    def restart(self) -> None:
        """Drop all copies after the local state was replaced, including copies that the trainer is
        still making. They may belong to an abandoned branch. Waiting requests are handled when the
        next round has begun."""
        self.copies.clear()
        self._beside.clear()
        self._taking = deque([OUTDATED for _ in self._taking])
        self.next_requested_round = 0 if self.asks else NEVER

    def on_request(
        self, sender: PeerId, request: StateRequest, why_not: str, now: float
    ) -> list[Effect]:
        """Handle a request. ``why_not``: reason to reject all requests, or "" if the trainer has
        the state of the rounds."""
        here, waiting = self.source.round_id, self.asks.get(sender)
        if waiting is not None and _is_again(request, waiting):
            return []  # the reply is already in progress
        self._drop_request(sender)
        wanted = request.round_id or here
        if why_not:
            return [self._refuse(sender, request, why_not)]
        if wanted in self.copies:
            return self._answer(sender, request, wanted, now)
        if request.piece:
            return [self._refuse(sender, request, MOVED_ON)]
        if wanted != here:
            reason = (
                MOVED_ON
                if wanted < here
                else TOO_EARLY
                if self.closing or wanted > here + REQUESTED_AHEAD
                else ""
            )
            if reason:
                return [self._refuse(sender, request, reason)]
        takers = [peer for peer, ask in self.asks.items() if ask.what == "state"]
        if (request.what == "state" and len(takers) >= TAKERS_MAX) or self._is_busy(wanted):
            return [self._refuse(sender, request, BUSY)]
        self.asks[sender] = replace(request, round_id=wanted)
        if not request.round_id:
            self._now.add(sender)
        self._update_next_requested()
        return self._request_snapshot(here) if wanted == here else []

    def _is_busy(self, wanted: int) -> bool:
        """Whether a request for round ``wanted`` would exceed ``AWAITED_ROUNDS``."""
        rounds = {ask.round_id for ask in self.asks.values()} | {*self._taking}
        return wanted not in rounds and len(rounds) >= AWAITED_ROUNDS

    def _drop_request(self, peer: PeerId) -> None:
        self.asks.pop(peer, None)
        self._now.discard(peer)

    def _update_next_requested(self) -> None:
        here = self.source.round_id
        self.next_requested_round = min(
            [ask.round_id for ask in self.asks.values() if ask.round_id > here], default=NEVER
        )

    def _request_snapshot(self, round_id: int) -> list[Effect]:
        if round_id in self._taking:
            return []
        self._taking.append(round_id)
        # Store the snapshot now: when a large state has been copied, the rounds may have dropped
        # the snapshot of that round.
        self._beside[round_id] = self.source.snapshot(round_id)
        return [TakeSnapshot()]

    def copy_own(self) -> list[Effect]:
        """Request a copy of the local state for the local peer only."""
        self._taking.append(OUTDATED)
        return [TakeSnapshot()]

    def on_round(self, now: float) -> list[Effect]:
        """Handle the start of a requested round, or of a round after it."""
        here = self.source.round_id
        effects: list[Effect] = []
        for peer, ask in list(self.asks.items()):
            if ask.round_id < here and ask.round_id not in self._taking:
                self._drop_request(peer)
                effects.append(self._refuse(peer, ask, MOVED_ON))
        if any(ask.round_id == here for ask in self.asks.values()):
            effects += self._request_snapshot(here)
        self._update_next_requested()
        return effects

    def on_snapshot(self, event: SnapshotTaken, now: float) -> list[Effect]:
        round_id = event.round_id
        beside = self._beside.pop(self._taking[0], None) if self._taking else None
        asked_at = self._taking.popleft() if self._taking else -1
        if asked_at == OUTDATED:
            return []
        kept = beside if asked_at == round_id else self.source.snapshot(round_id)
        core = pack_json(kept[1]) if kept is not None else b""
        whole, why = kept is not None and event.payload.nbytes > 0, MOVED_ON
        if len(core) > CORE_BYTES_MAX:
            whole, why = False, TOO_MUCH
        if kept is not None and whole:
            self.copies[round_id] = _HeldSnapshot(kept[0], core, event, now)
        effects: list[Effect] = []
        for peer, ask in list(self.asks.items()):
            fits = ask.round_id == round_id or (
                peer in self._now and (ask.round_id < round_id or not self._taking)
            )
            if fits or (ask.round_id < round_id and ask.round_id not in self._taking):
                self._drop_request(peer)
                effects += (
                    self._answer(peer, ask, round_id, now)
                    if fits and whole
                    else [self._refuse(peer, ask, why)]
                )
        self._update_next_requested()
        replies = [effect.message for effect in effects if isinstance(effect, Send)]
        again = any(
            isinstance(message, StateAttestation)
            or (isinstance(message, StateOffer) and message.outline)
            for message in replies
        )
        # After the last round the state no longer changes, and further peers may request it.
        if again or self.closing:
            return effects + self._sweep(now)
        self.copies.pop(round_id, None)  # no further request for this copy follows
        return effects

    def _sweep(self, now: float) -> list[Effect]:
        """Set the timer for the removal of the copy that expires first."""
        if self._sweeps or not self.copies:
            return []
        self._sweeps = True
        return [
            self.timers.set(
                max(now, min(copy.used_at for copy in self.copies.values()) + self._keep_s),
                SnapshotExpired(),
            )
        ]

    @property
    def _keep_s(self) -> float:
        return 2.0 * self.settings.rounds.round_timeout_s

    def on_timer(self, now: float) -> list[Effect]:
        self._sweeps = False
        for round_id in [
            known for known, copy in self.copies.items() if now >= copy.used_at + self._keep_s
        ]:
            del self.copies[round_id]
        return self._sweep(now)

    def _answer(self, peer: PeerId, ask: StateRequest, round_id: int, now: float) -> list[Effect]:
        copy, lineage = self.copies[round_id], self.settings.lineage
        payload = copy.taken.payload
        if ask.what == "attestation":
            copy.used_at = now
            state, settings = parts_of(payload)
            digest = attested_digest(lineage, round_id, copy.chain, copy.core, state)
            return [
                Send(
                    peer,
                    StateAttestation(
                        lineage, ask.nonce, round_id, copy.chain, digest, settings, ""
                    ),
                )
            ]
        return self._send_state(peer, ask, round_id, copy, now)

    def _send_state(
        self, peer: PeerId, ask: StateRequest, round_id: int, copy: _HeldSnapshot, now: float
    ) -> list[Effect]:
        """Send the whole state, or a piece of the state, or the offer with the parts that are not
        cut into pieces."""
        payload, parts = copy.taken.payload, copy.taken.parts
        outline = outline_of(payload)
        offer = StateOffer(
            lineage=self.settings.lineage,
            nonce=ask.nonce,
            round_id=round_id,
            chain=copy.chain,
            digest=payload.digest,
            nbytes=payload.nbytes,
            core=copy.core,
            reason="",
            parts=parts,
        )
        if ask.piece > (0 if outline is None else len(outline.digests)):
            return [self._refuse(peer, ask, NO_SUCH_PIECE)]
        if outline is not None:
            payload = cut(payload, outline, ask.piece)
            offer = replace(offer, digest=payload.digest, nbytes=payload.nbytes)
            if ask.piece:
                offer = replace(offer, core=b"", parts=(), piece=ask.piece)
            else:
                offer = replace(offer, parts=parts[1:], outline=outline.packed())
        if copy.given[peer, ask.piece] >= GIVEN_TIMES_MAX:
            return [self._refuse(peer, ask, ENOUGH)]
        if outline is not None and self._is_crowded(peer, now):
            return [self._refuse(peer, ask, BUSY)]
        copy.given[peer, ask.piece] += 1
        self._record_sent(peer, ask.piece, now)
        copy.used_at = now
        fields = {
            "to": peer,
            "round": round_id,
            "nbytes": payload.nbytes,
            **({"piece": ask.piece} if ask.piece else {}),
        }
        return [Send(peer, offer, payload), Report("snapshot_served", fields)]

    def _record_sent(self, peer: PeerId, piece: int, now: float) -> None:
        """Record that a piece is sent. A peer that requests the same piece too often in a round no
        longer counts as a receiver."""
        if self._given_in != self.source.round_id:
            self._given_in = self.source.round_id
            self._given.clear()
        self._given[peer, piece] += 1
        if self._given[peer, piece] <= GIVEN_TIMES_MAX:
            self._taken_until[peer] = now + self.settings.rounds.round_timeout_s

    def current_receivers(self, now: float) -> set[PeerId]:
        """Return the peers that receive the local state at present."""
        return {peer for peer, until in self._taken_until.items() if now < until}

    def _is_crowded(self, peer: PeerId, now: float) -> bool:
        """Whether too many other peers are receiving pieces. If not, record ``peer`` as a
        receiver."""
        self._takers = {taker: at for taker, at in self._takers.items() if now - at < REPLY_S}
        if peer not in self._takers and len(self._takers) >= TAKERS_MAX:
            return True
        self._takers[peer] = now
        return False

    def _refuse(self, peer: PeerId, ask: StateRequest, reason: str) -> Send:
        """Return the rejection of a request, which contains the present round of this peer."""
        here, lineage = self.source.round_id, self.settings.lineage
        if ask.what == "attestation":
            return Send(peer, StateAttestation(lineage, ask.nonce, here, b"", b"", b"", reason))
        return Send(
            peer, StateOffer(lineage, ask.nonce, here, b"", b"", 0, b"", reason, piece=ask.piece)
        )


def core_of(offer: StateOffer) -> tuple[Any, ...]:
    """Return the snapshot of roster, trust and data in an offer.

    Raises: ValueError: The offer has no valid snapshot.
    """
    snapshot = unpack_json(offer.core)
    if not isinstance(snapshot, list):
        raise ValueError("the snapshot is not a list")
    return tuple(snapshot)


def is_usable(source: DonorRounds, offer: StateOffer) -> bool:
    """Whether the rounds can resume from an offer: it is no single piece, and its snapshot can be
    adopted. This must be called before the state is loaded, because loading replaces the local
    state."""
    if offer.piece:
        return False
    try:
        source.check(offer.chain, core_of(offer))
    except (ValueError, OverflowError, RecursionError):
        # A value may be nested so deep that it can be read, but not shown in an error message.
        return False
    return True
