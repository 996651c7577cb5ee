"""Giving one's state to peers that join, return or have lost the thread; and vouching for it.

The trainer copies its state between two rounds, once for all who ask for it at that round.
Everything else (packing, digests, sending) is done beside it. A copy that was vouched for, or is
given in pieces, is kept for a while: it is asked for again.

Whoever asks, and however often, a donor's memory holds no more than ``COPIES_MAX`` states, and what
is on its way: to ``TAKERS_MAX`` peers at a time, and to nobody the same more than
``GIVEN_TIMES_MAX`` times.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Protocol

from gossip.core.events import Effect, Payload, Report, Send, SnapshotTaken, TakeSnapshot
from gossip.core.frozen import record
from gossip.core.ledger import pack_json, stretch, unpack_json
from gossip.core.messages import (
    CORE_BYTES_MAX,
    DIGEST_BYTES,
    PeerId,
    StateAttestation,
    StateOffer,
    StateRequest,
)
from gossip.core.settings import CoreSettings
from gossip.core.timers import Timers

from .chunks import cut, outline_of

TAKERS_MAX = 4
"""Peers that one donor gives its state to at a time; others are told to ask elsewhere."""

COPIES_MAX = 2
"""States of different rounds that are kept at a time."""

ROUNDS_MAX = 4
"""Different rounds that takers may wait for at a time."""

TAKES_S = 1.0
"""Time in seconds after which a peer that has requested no further piece is no taker any more: it
has all pieces, or other peers send them."""

GIVEN_TIMES_MAX = 4
"""One peer is given the same piece of a state so many times at most: it may be started again, or
lose what it was sent."""

AHEAD_MAX = 64
"""Rounds that a request may be ahead of the donor."""

NEVER = 2**63
OUTDATED = -2
"""Stands for a round of a state that is given to nobody, or was left since the trainer was asked to
copy it."""

NO_STATE = "has no state to give"
TAKES_OVER = "takes over another state itself"
BUSY = "busy with other peers"
MOVED_ON = "has moved on meanwhile"
TOO_MUCH = "what it knows of its peers does not fit a message"
TOO_EARLY = "is not there"
ENOUGH = "has given it often enough"
NO_SUCH_PIECE = "has no such piece"


class DonorRounds(Protocol):
    """The rounds, as recovery sees them: of ``LocalProgress`` what it needs."""

    @property
    def round_id(self) -> int: ...

    def snapshot(self, round_id: int) -> tuple[bytes, tuple[Any, ...]] | None: ...

    def check(self, chain: bytes, snapshot: tuple[Any, ...]) -> None: ...


def attested_digest(
    lineage: bytes, round_id: int, chain: bytes, core: bytes, state: bytes
) -> bytes:
    """Return the digest of all that peers have in common before ``round_id``.

    Args:
        chain: H of the round before.
        core: Roster, trust and data cursor, packed. The digest covers their text, as another
            implementation of the compression makes other bytes.
        state: Digest of the first part of the packed state, or its outline: parameters, and the
            optimizer's memory.
    """
    found = blake2b(digest_size=DIGEST_BYTES, person=b"gossip-state")
    for part in (lineage, round_id.to_bytes(8, "big"), chain, stretch(core), state):
        found.update(len(part).to_bytes(4, "big") + part)
    return found.digest()


def parts_of(payload: Payload) -> tuple[bytes, bytes]:
    """Return the digest or outline of what all peers have in common, and the digest of what their
    scripts set (b"": nothing)."""
    parts = payload.parts or (payload.digest,)
    return parts[0], parts[1] if len(parts) > 1 else b""


def _is_again(request: StateRequest, waiting: StateRequest) -> bool:
    """Whether this is what its sender asked for before. ``waiting`` names the round that it was
    asked in, when it named none."""
    return request in (waiting, replace(waiting, round_id=0))


@record
class SnapshotExpired:
    """Some copy may have had its time."""


@dataclass(slots=True)
class _HeldSnapshot:
    """State of the trainer before a round."""

    chain: bytes
    core: bytes
    taken: SnapshotTaken
    used_at: float
    # times, to whom which piece
    given: Counter[tuple[PeerId, int]] = field(default_factory=Counter)


class Donor:
    """Answers requests for the state."""

    def __init__(self, settings: CoreSettings, source: DonorRounds, timers: Timers[Any]) -> None:
        self.settings, self.source, self.timers = settings, source, timers
        self.next_requested_round = NEVER  # the next round whose state a peer has requested
        self.asks: dict[PeerId, StateRequest] = {}  # one a peer, under the round that it waits for
        self.copies: OrderedDict[int, _HeldSnapshot] = OrderedDict()
        self._now: set[PeerId] = set()  # who takes what there is, of whatever round
        self._takers: dict[PeerId, float] = {}  # of pieces, and when they asked last
        # in our round: what each peer was given, how often, and until when it is on its way
        self._given_in, self._given = -1, Counter[tuple[PeerId, int]]()
        self._taken_until: dict[PeerId, float] = {}
        # rounds at which the trainer was asked: it answers in order
        self._taking: deque[int] = deque()
        # what belongs to the state at these
        self._beside: dict[int, tuple[bytes, tuple[Any, ...]] | None] = {}
        self._sweeps = False
        self.closing = False  # no round comes after this one

    def close(self) -> list[Effect]:
        """There are no more rounds: nobody is to wait for one."""
        self.closing = True
        waiting = [
            (peer, ask) for peer, ask in self.asks.items() if ask.round_id > self.source.round_id
        ]
        for peer, _ in waiting:
            self._forget(peer)
        self._update_next_requested()
        return [self._refuse(peer, ask, TOO_EARLY) for peer, ask in waiting]

    def expect_rounds(self, come: bool) -> None:
        """Whether rounds come after this one."""
        self.closing = not come

    def restart(self) -> None:
        """Another state was taken over: no copy of the one before is given or vouched for, nor one
        that is still to come. It may be of the very same round, and of a branch that all have left.
        Who waits is seen to when the round has begun."""
        self.copies.clear()
        self._beside.clear()
        self._taking = deque([OUTDATED for _ in self._taking])
        self.next_requested_round = 0 if self.asks else NEVER

    def on_request(
        self, sender: PeerId, request: StateRequest, why_not: str, now: float
    ) -> list[Effect]:
        """``why_not``: "" when the trainer holds the state of the rounds."""
        here, waiting = self.source.round_id, self.asks.get(sender)
        if waiting is not None and _is_again(request, waiting):
            return []  # what it asked for is under way
        self._forget(sender)
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
                if self.closing or wanted > here + AHEAD_MAX
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
        """Whether so many rounds are waited for that ``wanted`` is one too many."""
        rounds = {ask.round_id for ask in self.asks.values()} | {*self._taking}
        return wanted not in rounds and len(rounds) >= ROUNDS_MAX

    def _forget(self, peer: PeerId) -> None:
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
        # By the time that a large state is copied and described its round may be long over, and
        # this not kept any more.
        self._beside[round_id] = self.source.snapshot(round_id)
        return [TakeSnapshot()]

    def copy_own(self) -> list[Effect]:
        """Have the trainer copy its state for this peer alone."""
        self._taking.append(OUTDATED)
        return [TakeSnapshot()]

    def on_round(self, now: float) -> list[Effect]:
        """A round begins that somebody has asked for, or was passed."""
        here = self.source.round_id
        effects: list[Effect] = []
        for peer, ask in list(self.asks.items()):
            if ask.round_id < here and ask.round_id not in self._taking:
                self._forget(peer)
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
            while len(self.copies) > COPIES_MAX:
                self.copies.popitem(last=False)
        effects: list[Effect] = []
        for peer, ask in list(self.asks.items()):
            fits = ask.round_id == round_id or (
                peer in self._now and (ask.round_id < round_id or not self._taking)
            )
            if fits or (ask.round_id < round_id and ask.round_id not in self._taking):
                self._forget(peer)
                effects += (
                    self._answer(peer, ask, round_id, now)
                    if fits and whole
                    else [self._refuse(peer, ask, why)]
                )
        self._update_next_requested()
        said = [effect.message for effect in effects if isinstance(effect, Send)]
        again = any(
            isinstance(message, StateAttestation)
            or (isinstance(message, StateOffer) and message.outline)
            for message in said
        )
        # After the last round it stays what it is:
        # whoever gave up waiting for it comes back for it.
        if again or self.closing:
            return effects + self._sweep(now)
        self.copies.pop(round_id, None)  # nobody will come back for it
        return effects

    def _sweep(self, now: float) -> list[Effect]:
        """Has the copies looked at when the first of them may have had its time."""
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
        """The whole, or one of its pieces, or all but these."""
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
        told = {
            "to": peer,
            "round": round_id,
            "nbytes": payload.nbytes,
            **({"piece": ask.piece} if ask.piece else {}),
        }
        return [Send(peer, offer, payload), Report("snapshot_served", told)]

    def _record_sent(self, peer: PeerId, piece: int, now: float) -> None:
        """Whoever asks in one round for the same again and again is on its way to nothing."""
        if self._given_in != self.source.round_id:
            self._given_in = self.source.round_id
            self._given.clear()
        self._given[peer, piece] += 1
        if self._given[peer, piece] <= GIVEN_TIMES_MAX:
            self._taken_until[peer] = now + self.settings.rounds.round_timeout_s

    def current_receivers(self, now: float) -> set[PeerId]:
        """Return the peers that the state is being sent to."""
        return {peer for peer, until in self._taken_until.items() if now < until}

    def _is_crowded(self, peer: PeerId, now: float) -> bool:
        """Whether so many take pieces that ``peer`` is one too many."""
        self._takers = {taker: at for taker, at in self._takers.items() if now - at < TAKES_S}
        if peer not in self._takers and len(self._takers) >= TAKERS_MAX:
            return True
        self._takers[peer] = now
        return False

    def _refuse(self, peer: PeerId, ask: StateRequest, reason: str) -> Send:
        """Says where we are, too."""
        here, lineage = self.source.round_id, self.settings.lineage
        if ask.what == "attestation":
            return Send(peer, StateAttestation(lineage, ask.nonce, here, b"", b"", b"", reason))
        return Send(
            peer, StateOffer(lineage, ask.nonce, here, b"", b"", 0, b"", reason, piece=ask.piece)
        )


def core_of(offer: StateOffer) -> tuple[Any, ...]:
    """The snapshot of roster, trust and data that belongs to the state.

    Raises: ValueError (of which a JSON error is one): it is none.
    """
    snapshot = unpack_json(offer.core)
    if not isinstance(snapshot, list):
        raise ValueError("the snapshot is not a list")
    return tuple(snapshot)


def is_usable(source: DonorRounds, offer: StateOffer) -> bool:
    """Whether the rounds can go on from it: the whole state, with a snapshot that can be adopted.
    To be asked before the state is loaded: the own one is lost then."""
    if offer.piece:
        return False
    try:
        source.check(offer.chain, core_of(offer))
    except (ValueError, OverflowError):
        return False
    return True
