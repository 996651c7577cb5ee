"""Receiver of a state transfer: a peer that joins, returns or has fallen behind adopts the state of
other peers.

Up to f peers may send a false state. So the receiver requests *attestations* from 2f + 1 peers that
may have a state. An attestation is the digest of a peer's state before a round. In the first poll,
each peer attests the state before its present round. If the run is slow, or waits for this
receiver, these rounds are equal. If the rounds differ, the receiver names a round slightly after
the (f + 1)-th highest round that the peers have reported, so that no Byzantine peer chooses the
named round. If f + 1 peers attest the same state, the state is agreed. One of these peers sends the
state, and the receiver verifies its digest before use. If this donor sends another state or none,
the next of these peers becomes the donor. If all of them have failed, the receiver polls for
another round.

The pieces of a large state are sent by all peers that attest it, at the same time (``chunks``). The
receiver requests no piece that the local state already contains. A peer that sends a wrong piece
receives no further request. Correct pieces stay stored if their donor fails later. After a correct
piece, the donor receives its next request at once. After a failure, it receives a request only when
its backoff is over (``backoff``). So a peer that replies fast but never delivers receives few
requests.

Fewer attestations are sufficient in two cases. In the first case, at most f other peers may have a
state, because the rest are dead or report that they have none. In the second case, the reachable
peers do not agree within a round timeout. In addition, at most 2f peers are reachable, or at most f
of them are in a later round than round 0. In both cases the receiver adopts the state that most
peers attest, and reports it as ``unattested_state``.

With f = 0, and in gossip rounds (whose replicas differ), there are no attestations: the receiver
requests the state from one donor after another until one donor delivers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from gossip.core.events import (
    Arriving,
    Effect,
    Payload,
    Received,
    Report,
    Restore,
    Restored,
    Send,
    SnapshotTaken,
    Token,
)
from gossip.core.frozen import record
from gossip.core.messages import PeerId, StateAttestation, StateOffer, StateRequest
from gossip.core.rounds import Transfer
from gossip.core.settings import (
    CHECK_INTERVAL_S,
    FETCHED_TIMES,
    NAMED_AHEAD,
    POLLS_MAX,
    POLLS_STRICT,
    REPLY_S,
    REQUESTED_AHEAD,
    STATE_SLACK,
    STATE_TIMES,
    TRANSFER_FACTOR,
)

from .attestation import Poll, StateSources
from .chunks import PieceFetcher, PieceManifest
from .donor import (
    NO_STATE,
    TAKES_OVER,
    Donor,
    SnapshotExpired,
    attested_digest,
    core_of,
    is_usable,
    parts_of,
)
from .donor_records import DonorRecords


@record
class DonorTimeout:
    """Timeout of the peers that received the request with this nonce."""

    nonce: int


Adopt: TypeAlias = Callable[[int, bytes, tuple[Any, ...]], None]
"""Callback that adopts the state that the trainer has loaded. Its arguments are the next round, H
of the previous round, and the snapshot. Raises the errors of ``LocalProgress.check``."""

Stage: TypeAlias = Literal["idle", "polling", "asking", "restoring"]
RecoveryTimer: TypeAlias = DonorTimeout | SnapshotExpired


class Recovery:
    """Both sides of a state transfer.

    Stages: in ``polling`` attestations were requested. In ``asking`` the state was requested from
    ``donor``, or its ``pieces`` from several peers. ``attestation``: attestation of the required
    state; None if any state may be adopted.
    """

    def __init__(
        self,
        local: PeerId,
        giving: Donor,
        swarm: StateSources,
        need: int,
    ) -> None:
        """``need``: required number of equal attestations. If it is 1, no attestations are
        requested."""
        self.giving, self.swarm, self.need = giving, swarm, need
        self.settings = settings = giving.settings
        self.stage: Stage = "idle"
        self.donor: PeerId | None = None
        self.attestation: StateAttestation | None = None
        self.attestations: tuple[PeerId, ...] = ()  # Peers that have sent ``attestation``.
        self.state_bytes = 0  # Size of the packed local state.
        self.local = local
        self._nonce = 0
        self._asked: set[PeerId] = set()
        self.pieces: PieceFetcher | None = None
        self._kept: dict[bytes, Any] = {}  # stored pieces
        self._offer: StateOffer | None = None
        self._untouched = True  # Whether the trainer has received no state in this recovery.
        self.has_own = False  # Whether the trainer has a state of the rounds.
        self.records = DonorRecords(local, settings, swarm)
        self._began_at = 0.0
        self._tries = 0
        self.poll = Poll(settings.seed)
        # peers that attest the agreed state, and from which it was not requested yet
        self._sources: list[PeerId] = []
        self._takes_settings = False
        self._patience: Token | None = None
        # transfers of pieces, by sender
        self._coming: dict[tuple[PeerId, int], Transfer] = {}

    def on_message(self, event: Received, able: bool, now: float) -> list[Effect]:
        """Handle a message. ``able``: whether the local trainer has the state of the rounds."""
        match event.message:
            case StateRequest() as request:
                # A peer that may return to its own state must not deny that it has a state.
                # Otherwise, if all honest peers left their branches at the same time, only a
                # Byzantine peer would claim a state.
                back = self.stage != "idle" and (self.has_own or self._is_receiving_state(now))
                if request.what == "state":
                    patience_s = self.settings.rounds.round_timeout_s
                    self.swarm.note_state(event.sender, now + patience_s)
                return self.giving.on_request(
                    event.sender, request, "" if able else TAKES_OVER if back else NO_STATE, now
                )
            case StateAttestation() as attestation:
                return self._on_attestation(event.sender, attestation, now)
            case StateOffer() as offer:
                return self._on_offer(event.sender, offer, event.payload, now)
            case _:
                raise AssertionError(
                    f"{type(event.message).__name__} is not a message of state transfer"
                )

    def _is_receiving_state(self, now: float) -> bool:
        """Whether a state is being restored, or pieces of a state are still awaited before the
        deadline of some peer."""
        arrives = self.pieces is not None and not all(
            self.records.deadlines.is_over(peer, now) for peer in self.waits_for
        )
        return arrives or self.stage == "restoring"

    # --- requests ---------------------------------------------------------------------------------

    def prepare(self, state_bytes: int) -> None:
        """Set the size of the packed local state, after the trainer has built its model."""
        self.state_bytes = state_bytes

    def begin(
        self, first: PeerId | None, reason: str, now: float, has_own: bool = False
    ) -> list[Effect]:
        """Begin a recovery, unless one is in progress. Request attestations from several peers. If
        no attestations are needed, request the state of ``first`` or of the best donor."""
        if self.stage != "idle":
            return []
        self._asked.clear()
        self.has_own, self._began_at = has_own, now
        self._tries, self.poll = 0, Poll(self.settings.seed)
        self.attestation, self.attestations = None, ()
        self._untouched = True
        self.records.clear()
        return [Report("recovering", {"reason": reason, "from": first}), *self._again(first, now)]

    def _again(self, first: PeerId | None, now: float) -> list[Effect]:
        return self._ask(first, now) if self.need == 1 else self._poll(now)

    def _another(self, now: float) -> list[Effect]:
        """Request the state from the next donor, because the present donor, or the peers that send
        its pieces, have not delivered the state."""
        if self.donor is not None and (self.pieces is None or self.stage == "restoring"):
            self.records.fail(self.donor, now, loaded=self.stage == "restoring")
        return self._ask(None, now) if self.attestation is None else self._next_source(now)

    def payload_bytes(self, sender: PeerId, offer: StateOffer) -> int:
        """Return the maximum size of the payload of an offer in bytes; -1 if no payload is
        admitted."""
        if not offer.digest:
            return 0
        if self.stage != "asking" or offer.nonce != self._nonce:
            return -1
        if self.pieces is not None:
            return self.pieces.length(sender, offer.piece)
        return self._state_bytes_max if sender == self.donor else -1

    @property
    def _state_bytes_max(self) -> int:
        return STATE_TIMES * self.state_bytes + STATE_SLACK

    def _is_too_large(self, outline: PieceManifest, rest: int) -> bool:
        """Whether a state in pieces, or one of its pieces, exceeds the size limit."""
        longest = FETCHED_TIMES * self.state_bytes + STATE_SLACK
        return outline.nbytes + rest > longest or outline.piece_bytes > self._state_bytes_max

    @property
    def restores(self) -> bool:
        """Whether a whole state has arrived and is being restored."""
        return self.stage == "restoring"

    @property
    def waits_for(self) -> set[PeerId]:
        """Peers from which the state or pieces of it were requested."""
        if self.stage != "asking":
            return set()
        if self.pieces is not None:
            return self.pieces.waits_for
        return set() if self.donor is None else {self.donor}

    def _ask(self, first: PeerId | None, now: float) -> list[Effect]:
        donors = self.swarm.donors()
        fresh = [peer for peer in donors if peer not in self._asked]
        fresh.sort(key=lambda peer: peer in self.records.attackers)  # attackers come last
        if first is None or first not in donors:
            first = fresh[0] if fresh else None
        if first is None:
            # all peers have received a request, so start again when the timer fires
            self._asked.clear()
            self.records.no_state.turn_is_over(self._has_waited(now))
            return self._wait("asking", None, self.settings.membership.probe_interval_s, now)
        self._asked.add(first)
        return self._request_state(first, 0, now)

    def _request_state(self, donor: PeerId, round_id: int, now: float) -> list[Effect]:
        patience_s = self.settings.rounds.round_timeout_s
        effects = self._wait("asking", donor, patience_s, now)
        self.records.deadlines.ask([donor], now)
        self.swarm.note_state(self.local, now + patience_s)
        return [
            *effects,
            Send(donor, StateRequest(self.settings.lineage, self._nonce, round_id, "state")),
        ]

    def _wait(
        self, stage: Stage, donor: PeerId | None, patience_s: float, now: float
    ) -> list[Effect]:
        """Begin a stage and start its timer. The requests of the stage have a new nonce."""
        self.stage, self.donor, self.pieces = stage, donor, None
        self._coming.clear()
        self._nonce += 1
        return self._set_timer(now + patience_s)

    def _set_timer(self, at: float) -> list[Effect]:
        """Replace the timer of the present stage."""
        cancelled = self.giving.timers.cancel(self._patience)
        timer = self.giving.timers.set(at, DonorTimeout(self._nonce))
        self._patience = timer.token
        return [*cancelled, timer]

    def on_timer(self, timer: RecoveryTimer, now: float) -> list[Effect]:
        if isinstance(timer, SnapshotExpired):
            return self.giving.on_timer(now)
        if timer.nonce != self._nonce:
            return []
        if self.stage == "polling":
            return self._poll(now) if self.poll.paused else self._remind(now)
        if self.stage != "asking":
            return []
        return self._another(now) if self.pieces is None else self._hurry(self.pieces, now)

    def on_arriving(self, event: Arriving, now: float) -> list[Effect]:
        """Extend the deadline while a state or a piece arrives, unless the transfer is too slow."""
        offer, sender = event.message, event.sender
        assert isinstance(offer, StateOffer)
        if self.stage != "asking" or offer.nonce != self._nonce or sender not in self.waits_for:
            return []
        transfer, timeout_s = (
            self._coming.get((sender, offer.piece)),
            self.settings.rounds.round_timeout_s,
        )
        if transfer is None or event.received < transfer.received:
            transfer = self._coming[sender, offer.piece] = Transfer.begun(
                event.nbytes, event.received, now
            )
        transfer.grew(event.received, now)
        if transfer.ends_at(now) > now + TRANSFER_FACTOR * timeout_s:
            return []
        until = now + timeout_s
        self.records.deadlines.move(sender, until, now)
        if self.pieces is not None:
            self.pieces.put_off(sender, offer.piece, until)
            until = min(self.pieces.asked.values())
        return self._set_timer(until)

    def has_no_donor(self, timer: RecoveryTimer) -> bool:
        """Whether all peers have received requests and none of them has a state. The local peer
        must then continue with its own state, or start the run again.

        Without this check, peers would wait for each other forever if all of them left their
        branches at the same time, each for the branch of another peer. Peers that wait for the
        initial weights of a dead peer would also wait forever.
        """
        if (
            not self._untouched
            or self.donor is not None
            or not isinstance(timer, DonorTimeout)
            or timer.nonce != self._nonce
        ):
            return False
        if not self.has_own:
            return self.records.no_state.is_sure
        if self.stage != "polling":
            return self.stage == "asking"
        # A peer that has finished, or is in another round, refuses for another reason, and does
        # have a state.
        denied_by_all = all(
            attestation.reason in (NO_STATE, TAKES_OVER) for attestation in self.poll.votes.values()
        )
        return self.poll.paused and (self._tries >= POLLS_MAX or denied_by_all)

    def cancel(self) -> None:
        self.stage, self.pieces = "idle", None
        self._kept.clear()

    def on_view_change(self, now: float) -> list[Effect]:
        """Drop the requests to skipped peers, and send requests to new peers."""
        self.records.deadlines.keep(self.swarm.donors())
        if self.stage == "polling" and not self.poll.paused:
            return self._widen(now) + self._count(now)
        if self.stage == "asking" and (gone := self.waits_for.difference(self.swarm.donors())):
            if self.pieces is None:
                return self._another(now)
            self.pieces.release(gone)
            for peer in gone:
                self.records.backoff.failed(peer, now)
            return self._fetch(self.pieces, now)
        return []

    def on_hello(self, peer: PeerId, round_id: int) -> list[Effect]:
        """Record that ``peer`` is in a round. If ``peer`` has replied to the present poll that it
        has no state, repeat the request to ``peer``. Otherwise ``peer`` would count as a peer
        without a state until the end of the poll."""
        if round_id > 0:
            self.records.note_state(peer)
        vote = self.poll.votes.get(peer)
        polls = self.stage == "polling" and not self.poll.paused
        if not polls or round_id == 0 or vote is None or vote.reason != NO_STATE:
            return []
        self.poll.forget(peer)
        return self._ask_for_attestations([peer])

    # --- attestations -----------------------------------------------------------------------------

    def _poll(self, now: float) -> list[Effect]:
        """Start a poll: request attestations. Polls alternate: in one poll each peer attests the
        state before its present round, and in the next poll, if a round may be named, all attest
        the state before that round."""
        self._tries += 1
        donors, named, ahead = self.swarm.donors(), 0, self.poll.ahead
        if self._may_name():
            ahead = min(REQUESTED_AHEAD, 4 * ahead or NAMED_AHEAD)
            named = sorted(map(self.swarm.round_of, donors))[-self.need] + ahead
        patience_s = self.settings.membership.probe_interval_s
        self.poll = Poll(self.settings.seed, named, now + patience_s, ahead)
        return self._wait("polling", None, REPLY_S if donors else patience_s, now) + self._widen(
            now
        )

    def _may_name(self) -> bool:
        """Whether the last poll named no round, and so many peers attested a state in it that
        Byzantine peers cannot choose the named round. Otherwise the poll must not name a round:
        peers may still wait for the initial weights, in round 0."""
        return not self.poll.named and len(self.poll.able & {*self.swarm.donors()}) >= self.need

    def _widen(self, now: float) -> list[Effect]:
        """Send requests to more peers. In the first poll, only the smallest sufficient number of
        peers receives a request. A peer without a state is replaced by another peer, because all
        peers of the local branch may be in recovery. In later polls, all peers receive a
        request."""
        fresh = [peer for peer in self.swarm.donors() if peer not in self.poll.asked]
        if self._tries == 1:
            lacking = len(self.poll.votes) - len(self.poll.able)
            fresh = fresh[: max(0, 2 * self.need - 1 - len(self.poll.asked) + lacking)]
        if fresh and not self.poll.asked:
            self.poll.set_deadline(now + self.settings.rounds.round_timeout_s)
        self.poll.ask(fresh)
        self.records.deadlines.ask(fresh, now)
        return self._ask_for_attestations(fresh)

    def _ask_for_attestations(self, peers: Iterable[PeerId]) -> list[Effect]:
        request = StateRequest(self.settings.lineage, self._nonce, self.poll.named, "attestation")
        return [Send(peer, request) for peer in peers]

    def _remind(self, now: float) -> list[Effect]:
        """Repeat the request to peers that have not replied or had no state. At the deadline,
        conclude the poll."""
        if self.poll.hurried or now >= self.poll.until:
            return self._conclude(now)
        self.poll.forget_refusals()
        timer = self._set_timer(min(now + REPLY_S, self.poll.until))
        return [*timer, *self._ask_for_attestations(self.poll.unanswered(self.swarm.donors()))]

    def _on_attestation(
        self, sender: PeerId, attestation: StateAttestation, now: float
    ) -> list[Effect]:
        outdated = self.stage != "polling" or self.poll.paused or attestation.nonce != self._nonce
        if outdated or sender not in self.poll.asked or sender in self.poll.votes:
            return []
        self.poll.votes[sender] = attestation
        if attestation.digest:
            self.records.attest(sender, now)
        else:
            self.records.refuse(sender, attestation.reason, now)
        # If the round is 0, the peer may not have begun: its node replies even before its trainer
        # has started. So this is no report of a round.
        if attestation.digest or attestation.round_id:
            self.swarm.record_round(sender, attestation.round_id)
        return self._count(now) if attestation.digest else self._widen(now) + self._count(now)

    def _count(self, now: float) -> list[Effect]:
        """Count the votes after a reply, or after a peer has become unreachable."""
        group = self.poll.largest(strict=self._tries <= POLLS_STRICT)
        if len(group) >= self.need:
            return self._agree(group, now)
        donors = self.swarm.donors()
        if all(peer in self.poll.votes or peer not in donors for peer in self.poll.asked):
            return self._conclude(now)
        if not self.poll.hurried and (
            len(self.poll.able) >= self.need
            or len(self.poll.votes) > max(0, len(self.poll.asked) - self.need)
        ):
            self.poll.hurry()
            return self._set_timer(now + CHECK_INTERVAL_S)
        return []

    def _conclude(self, now: float) -> list[Effect]:
        """Conclude a poll without agreement, after all replies or at the deadline."""
        group = self.poll.largest(
            strict=self._tries <= POLLS_STRICT, failures=self.records.backoff.failures
        )
        if group and len(group) >= self._enough(now):
            where = {
                "round": self.poll.votes[group[0]].round_id,
                "attested_by": group,
                "need": self.need,
            }
            return [Report("unattested_state", where), *self._agree(group, now)]
        if self._may_name():
            return self._poll(now)  # the peers are in different rounds
        return self._pause(now)

    def _pause(self, now: float) -> list[Effect]:
        self.poll.pause()
        self.records.no_state.turn_is_over(self._has_waited(now))
        return self._wait("polling", None, self.settings.membership.probe_interval_s, now)

    def _enough(self, now: float) -> int:
        """Return the number of equal attestations that is sufficient after a poll without
        agreement. It is 1 if too few peers can have a state, or if so few peers are reachable that
        Byzantine peers could prevent an agreement forever. Otherwise it is ``need``."""
        without = {
            peer for peer, attestation in self.poll.votes.items() if attestation.reason == NO_STATE
        }
        known = sorted({*self.settings.peers, *self.swarm.met()} - {self.local})
        here = [peer for peer in known if peer in self.poll.votes or not self.swarm.is_gone(peer)]
        may_have = [peer for peer in here if peer not in without]
        within_reach = [peer for peer in self.swarm.donors() if peer not in without]
        # At the start of a run, only a single peer may have the initial weights, so count the peers
        # in later rounds.
        beyond = [
            peer
            for peer in within_reach
            if peer not in self.poll.votes or self.poll.votes[peer].round_id > 0
        ]
        scarce = len(within_reach) < 2 * self.need - 1 or len(beyond) < self.need
        return 1 if len(may_have) < self.need or (scarce and self._has_waited(now)) else self.need

    def _has_waited(self, now: float) -> bool:
        return now - self._began_at > self.settings.rounds.round_timeout_s

    def _agree(self, group: list[PeerId], now: float) -> list[Effect]:
        """Request, from one peer of ``group``, the state that all peers of ``group`` attest."""
        attestations = [self.poll.votes[peer] for peer in group]
        self.attestation, self.attestations = attestations[0], tuple(group)
        records = self.records
        able = [p for p in self.swarm.donors() if p in group and p not in records.attackers]
        # Peers with many failures come last.
        self._sources = sorted(able, key=lambda peer: records.backoff.failures[peer])
        self._takes_settings = len({attestation.settings for attestation in attestations}) == 1
        return self._next_source(now)

    def _next_source(self, now: float) -> list[Effect]:
        assert self.attestation is not None
        donors = self.swarm.donors()
        while self._sources:
            if (peer := self._sources.pop(0)) in donors:
                return self._request_state(peer, self.attestation.round_id, now)
        self.attestation, self.attestations = None, ()
        return self._pause(now)

    # --- transfer ---------------------------------------------------------------------------------

    def _on_offer(
        self, sender: PeerId, offer: StateOffer, payload: Payload | None, now: float
    ) -> list[Effect]:
        if self.stage != "asking" or offer.nonce != self._nonce:
            return []
        if self.pieces is not None:
            return self._on_piece(self.pieces, sender, offer, payload, now)
        if sender != self.donor:
            return []
        if payload is None or not offer.digest:
            self.records.refuse(sender, offer.reason, now)
            return [
                Report("no_state", {"from": sender, "reason": offer.reason}),
                *self._another(now),
            ]
        self.records.note_state(sender)
        outline = PieceManifest.read(offer.outline) if offer.outline else None
        fits = (
            payload.digest == offer.digest
            and is_usable(self.giving.source, offer)
            and self._is_agreed(offer, payload)
        )
        if not fits or (
            offer.outline and (outline is None or self._is_too_large(outline, payload.nbytes))
        ):
            return [
                Report("bad_state", {"from": sender, "round": offer.round_id}),
                *self._another(now),
            ]
        self._offer = offer
        if outline is None:
            return self._restore(offer, payload)
        self.records.backoff.delivered(sender)
        self.pieces = PieceFetcher(outline, payload, self._kept, [sender, *self._sources])
        return self.giving.copy_own()

    def on_snapshot(self, event: SnapshotTaken, now: float) -> list[Effect]:
        """Handle a copy of the local state, which was requested for other peers, or to find pieces
        in common with the required state."""
        effects = self.giving.on_snapshot(event, now)
        if self.pieces is None or self.stage != "asking":
            return effects
        self.pieces.keep_own(event.payload)
        return effects + self._fetch(self.pieces, now)

    def _restore(self, offer: StateOffer, payload: Payload) -> list[Effect]:
        self.stage, self.has_own, self._untouched = "restoring", False, False
        takes_settings = self.attestation is None or self._takes_settings
        collectives = (core_of(offer) or (0,))[-1]  # gossip rounds have no snapshot and count none
        return [Restore(offer.round_id, payload, takes_settings, collectives)]

    def _fetch(self, pieces: PieceFetcher, now: float) -> list[Effect]:
        """Request missing pieces from the donors that are not in backoff. If no piece is missing,
        restore the state."""
        offer, patience_s = self._offer, self.settings.rounds.round_timeout_s
        assert offer is not None
        if pieces.whole:
            return self._restore(offer, pieces.joined())
        fresh = pieces.ask(self.records.rested(self.swarm.donors(), now), now + patience_s)
        if not pieces.asked:
            return self._another(now)
        self.swarm.note_state(self.local, now + patience_s)
        lineage, timer = self.settings.lineage, self._set_timer(min(pieces.asked.values()))
        requests = [
            Send(peer, StateRequest(lineage, self._nonce, offer.round_id, "state", piece))
            for peer, piece in fresh
        ]
        return [*timer, *requests]

    def _on_piece(
        self,
        pieces: PieceFetcher,
        sender: PeerId,
        offer: StateOffer,
        payload: Payload | None,
        now: float,
    ) -> list[Effect]:
        if pieces.length(sender, offer.piece) < 0:
            return []
        effects: list[Effect] = []
        if payload is None or not offer.digest:
            self.records.refuse(sender, offer.reason, now)
            effects += self._lose(pieces, sender, "no_state", offer.reason, now)
        elif not pieces.accept_piece(sender, offer.piece, payload):
            self.records.attackers.add(sender)
            effects += self._lose(
                pieces,
                sender,
                "bad_state",
                f"piece {offer.piece} does not match the attested digest",
                now,
            )
        else:
            vouched = len(self.attestations) > self.settings.f
            self.records.deadlines.deliver(sender, pieces.outline.packed(), now, vouched)
        return effects + self._fetch(pieces, now)

    def _hurry(self, pieces: PieceFetcher, now: float) -> list[Effect]:
        """Exclude the peers that missed a deadline, and request their pieces from other peers."""
        late = pieces.overdue(now)
        lost = [
            self._lose(pieces, peer, "no_state", "has not sent its pieces in time", now)
            for peer in late
        ]
        return [effect for effects in lost for effect in effects] + self._fetch(pieces, now)

    def _lose(
        self, pieces: PieceFetcher, peer: PeerId, what: str, reason: str, now: float
    ) -> list[Effect]:
        """Record that ``peer`` has not delivered a piece, and send no further requests for pieces
        to ``peer``."""
        self.records.fail(peer, now)
        pieces.exclude_peers([peer])
        self._sources = [source for source in self._sources if source != peer]
        return [Report(what, {"from": peer, "reason": reason})]

    def _is_agreed(self, offer: StateOffer, payload: Payload) -> bool:
        """Whether an offer matches the attestation of the required state, if one is required."""
        attestation = self.attestation
        if attestation is None:
            return True
        state, settings = parts_of(
            replace(payload, parts=(offer.outline, *payload.parts)) if offer.outline else payload
        )
        same = (offer.round_id, offer.chain) == (attestation.round_id, attestation.chain)
        same = same and (settings == attestation.settings or not self._takes_settings)
        return (
            same
            and attested_digest(
                self.settings.lineage, offer.round_id, offer.chain, offer.core, state
            )
            == attestation.digest
        )

    def on_restored(self, event: Restored, adopt: Adopt, now: float) -> tuple[list[Effect], bool]:
        """Handle the result of a restore. Return the effects, and whether the rounds may resume
        from the new state."""
        if (
            self.stage != "restoring"
            or self._offer is None
            or event.round_id != self._offer.round_id
        ):
            return [], False
        offer, self._offer = self._offer, None
        problem = event.error
        self.records.record_load(self.donor, problem)
        if not problem:
            try:
                adopt(offer.round_id, offer.chain, core_of(offer))
            except (ValueError, OverflowError) as error:
                problem = str(error)
        if problem:
            report = Report("bad_state", {"from": self.donor, "reason": problem})
            return [report, *([] if self.records.fits_no_state else self._another(now))], False
        nbytes = offer.nbytes + (self.pieces.outline.nbytes if self.pieces is not None else 0)
        self.cancel()
        self.giving.restart()
        return [
            Report("restored", {"round": offer.round_id, "from": self.donor, "nbytes": nbytes})
        ], True
