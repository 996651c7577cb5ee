"""Taking the state of others, when a peer joins, returns or has lost the thread.

Up to f peers may lie about the state, too. So a taker asks 2f + 1 of those who may have it to
*vouch*: for the digest of what they hold before one and the same round. First before the round that
each is in, which in a swarm that moves slowly, or waits for just this taker, is the same one. If
they are in different rounds it names one a little ahead: of the (f + 1)-th highest that different
peers say they are in, so that no liar chooses it. What f + 1 vouch for is agreed; one of them sends
it, and it is compared with the digest before anything of it is used. A donor that sends something
else, or nothing, gives way to the next of them, and they to another round. The pieces of a large
state come from all who vouch for it at once (``chunks``), but for those that the own state has,
too. A peer that sends a wrong piece is not asked again, and what is here stays, whoever else fails.
A piece that came right earns the next question; nothing else does but time (``backoff``), so nobody
is asked often who answers soon and gives nothing.

Nobody can be asked for more than there is. When fewer than f + 1 others are left that can have a
state (the rest is dead, or says that it has none), or those within reach do not agree in the time
of a round and are no more than 2f, or are but f not before the first round, then what most of them
say is taken, and reported as ``unattested_state``.

With f = 0, and in gossip rounds, where replicas differ,
one donor after the other is asked until one delivers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeAlias

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
from gossip.core.rounds import TRANSFER_FACTOR, Transfer

from .attestation import NoStateEvidence, Poll
from .backoff import Backoff
from .chunks import PIECE_BYTES, PieceFetcher, PieceManifest
from .deadlines import DonorDeadlines
from .donor import (
    AHEAD_MAX,
    BUSY,
    NO_STATE,
    TAKES_OVER,
    Donor,
    SnapshotExpired,
    attested_digest,
    core_of,
    is_usable,
    parts_of,
)

STATE_TIMES = 7
"""A donor's packed state may be so many times as large as ours was when we began. An optimizer's
memory comes with its first step: of Adam with AMSGrad three times the parameters, and twice that
where these have 16 bits."""
STATE_SLACK = PIECE_BYTES + 2**20  # and this much larger: a small model's may be one whole piece
FETCHED_TIMES = 1024
"""Limit like STATE_TIMES, for a state that comes in pieces. Its memory grows only with correct
pieces. A preconditioner has the square of a row for each row, a history hundreds of gradients."""
REFUSALS_MAX = 3
"""Number of states in a row that a trainer may refuse to load. Then they do not fit this peer."""
AHEAD_ROUNDS = 2  # how far ahead the first round is that is named; four times as far each time
# who has not answered is asked again: question or answer may be lost,
# and who has finished does not wait
REMIND_S = 1.0
HURRY_S = 0.25  # enough have answered, and do not agree, or all but f: the others have so long
STRICT_TRIES = 2  # so often those who agree have to agree on what scripts set, too
TRIES_MAX = 6  # of one that has a state of its own to go back to


class StateSources(Protocol):
    """The other peers, as one sees them that wants a state."""

    def donors(self) -> tuple[PeerId, ...]:
        """Return the peers that may have a state, those in the latest rounds first: alive and not
        skipped."""

    def round_of(self, peer: PeerId) -> int:
        """The latest round that it says it is in."""

    def record_round(self, peer: PeerId, round_id: int) -> None: ...

    def note_state(self, peer: PeerId, until: float) -> None:
        """A state is on its way to this peer, until then at the latest: from us; to us where it is
        the local one."""

    def is_gone(self, peer: PeerId) -> bool: ...

    def met(self) -> Iterable[PeerId]:
        """Whoever is known to be there, or to have been."""


@record
class DonorTimeout:
    """Timeout of the peers that received the request ``nonce``."""

    nonce: int


Adopt: TypeAlias = Callable[[int, bytes, tuple[Any, ...]], None]
"""Tells the rounds which round comes next, H of the one before and the snapshot, which belong to
the state that the trainer was given. Raises as ``LocalProgress.check`` does."""

Stage: TypeAlias = Literal["idle", "polling", "asking", "restoring"]
RecoveryTimer: TypeAlias = DonorTimeout | SnapshotExpired


class Recovery:
    """Both sides of a state transfer.

    ``polling``: others are asked to vouch. ``asking``: ``donor`` is to send its state, or has
    offered it, and its ``pieces`` are to come. ``attestation``: what it must be; None:
    nobody has vouched.
    """

    def __init__(
        self,
        local: PeerId,
        giving: Donor,
        swarm: StateSources,
        need: int,
    ) -> None:
        """``need``: peers that must say the same; 1: nobody is asked to vouch."""
        self.giving, self.swarm, self.need = giving, swarm, need
        self.settings, self.source, self.timers = giving.settings, giving.source, giving.timers
        settings = self.settings
        self.stage: Stage = "idle"
        self.donor: PeerId | None = None
        self.attestation: StateAttestation | None = None
        self.attestations: tuple[PeerId, ...] = ()  # who have vouched for that
        self.state_bytes = 0  # of the own one, packed
        self.local = local
        self._nonce = 0
        self._asked: set[PeerId] = set()
        self.pieces: PieceFetcher | None = None
        self._kept: dict[bytes, Any] = {}  # pieces that are here
        self._attackers: set[PeerId] = set()  # who have sent a wrong one
        self._backoff = Backoff(settings.membership.probe_interval_s)
        self._offer: StateOffer | None = None
        self._rest: Payload | None = None  # of what is offered, all but the pieces
        self._untouched = True  # it has not begun to take another state
        self.has_own = False  # a state of the rounds, which it can go on with so long
        self._no_state = NoStateEvidence(local, settings.f, swarm)
        self._deadlines = DonorDeadlines(settings.rounds.round_timeout_s, settings.f)
        self._began_at = 0.0
        self._tries = 0
        self.poll = Poll(settings.seed)
        # who vouched for what is agreed, and has not been asked for it yet
        self._sources: list[PeerId] = []
        self._takes_settings = False
        self._patience: Token | None = None
        # donors of states that the trainer refused to load since it has loaded one
        self._refused: Counter[PeerId] = Counter()
        # pieces that are on their way, by sender
        self._coming: dict[tuple[PeerId, int], Transfer] = {}

    def on_message(self, event: Received, able: bool, now: float) -> list[Effect]:
        """``able``: the trainer holds the state of the rounds."""
        match event.message:
            case StateRequest() as request:
                # Who may yet go back to its own state is not one that has none: else one liar would
                # be all who have one, where all others have left their branches at once.
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
                raise AssertionError(f"{type(event.message).__name__} is not about states")

    def _is_receiving_state(self, now: float) -> bool:
        """Whether another's state is being taken over, or comes in pieces: from one who has not
        had its time for that."""
        comes = self.pieces is not None and not all(
            self._deadlines.is_over(peer, now) for peer in self.waits_for
        )
        return comes or self.stage == "restoring"

    # --- asking -----------------------------------------------------------------------------------

    def prepare(self, state_bytes: int) -> None:
        """The trainer has built its model: its own state, packed, is so large."""
        self.state_bytes = state_bytes

    def begin(
        self, first: PeerId | None, reason: str, now: float, has_own: bool = False
    ) -> list[Effect]:
        """Asks ``first`` (or the best donor) for its state, or many to vouch; does nothing when
        that is under way."""
        if self.stage != "idle":
            return []
        self._asked.clear()
        self.has_own, self._began_at, self._tries, self.attestation, self.attestations = (
            has_own,
            now,
            0,
            None,
            (),
        )
        self._untouched = True
        self._no_state.clear()
        self._deadlines.clear()
        self._attackers.clear()
        self._backoff.clear()
        return [Report("recovering", {"reason": reason, "from": first}), *self._again(first, now)]

    def _again(self, first: PeerId | None, now: float) -> list[Effect]:
        return self._ask(first, now) if self.need == 1 else self._poll(now)

    def _another(self, now: float) -> list[Effect]:
        """The donor has not delivered, or those who help it have not."""
        if self.donor is not None and (self.pieces is None or self.stage == "restoring"):
            self._backoff.failed(self.donor, now)
            self._deadlines.fail(self.donor, loaded=self.stage == "restoring")
        return self._ask(None, now) if self.attestation is None else self._next_source(now)

    def payload_bytes(self, sender: PeerId, offer: StateOffer) -> int:
        """The most that the payload of an offer may measure; -1 when none may come."""
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
        """Whether a state in pieces, or one of them, is larger than any that this peer may need."""
        longest = FETCHED_TIMES * self.state_bytes + STATE_SLACK
        return outline.nbytes + rest > longest or outline.piece_bytes > self._state_bytes_max

    @property
    def restores(self) -> bool:
        """Whether a state has come whole, and is being taken over."""
        return self.stage == "restoring"

    def stateless(self, now: float) -> set[PeerId]:
        """Return the peers that last reported that they have no state to send, or whose time is
        up."""
        return self._no_state.stateless | self._deadlines.overdue(now)

    @property
    def waits_for(self) -> set[PeerId]:
        """Peers that are to send their state, or pieces of it."""
        if self.stage != "asking":
            return set()
        if self.pieces is not None:
            return self.pieces.waits_for
        return set() if self.donor is None else {self.donor}

    def _ask(self, first: PeerId | None, now: float) -> list[Effect]:
        donors = self.swarm.donors()
        fresh = [peer for peer in donors if peer not in self._asked]
        fresh.sort(key=lambda peer: peer in self._attackers)  # they come last
        if first is None or first not in donors:
            first = fresh[0] if fresh else None
        if first is None:
            self._asked.clear()  # everybody was asked: begin again when the timer fires
            self._no_state.turn_is_over(self._has_waited(now))
            return self._wait("asking", None, self.settings.membership.probe_interval_s, now)
        self._asked.add(first)
        return self._request_state(first, 0, now)

    def _request_state(self, donor: PeerId, round_id: int, now: float) -> list[Effect]:
        patience_s = self.settings.rounds.round_timeout_s
        effects = self._wait("asking", donor, patience_s, now)
        self._deadlines.ask([donor], now)
        self.swarm.note_state(self.local, now + patience_s)
        return [
            *effects,
            Send(donor, StateRequest(self.settings.lineage, self._nonce, round_id, "state")),
        ]

    def _wait(
        self, stage: Stage, donor: PeerId | None, patience_s: float, now: float
    ) -> list[Effect]:
        """For an answer to what is asked under a new nonce."""
        self.stage, self.donor, self.pieces = stage, donor, None
        self._coming.clear()
        self._nonce += 1
        cancelled = self.timers.cancel(self._patience)
        timer = self.timers.set(now + patience_s, DonorTimeout(self._nonce))
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
        """A state, or a piece of one, is on its way: who sends it as fast as its link
        carries it is not late."""
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
        self._deadlines.move(sender, until, now)
        if self.pieces is not None:
            self.pieces.put_off(sender, offer.piece, until)
            until = min(self.pieces.asked.values())
        cancelled = self.timers.cancel(self._patience)
        timer = self.timers.set(until, DonorTimeout(self._nonce))
        self._patience = timer.token
        return [*cancelled, timer]

    def has_no_donor(self, timer: RecoveryTimer) -> bool:
        """Whether everybody was asked, nobody had a state to give, and the own one is whole:
        it has to do, then.

        Else peers that all leave their branches at once, each for another's, would wait for each
        other for ever; and so would those that want to begin with the weights of one that has gone.
        """
        if (
            not self._untouched
            or self.donor is not None
            or not isinstance(timer, DonorTimeout)
            or timer.nonce != self._nonce
        ):
            return False
        if not self.has_own:
            return self._no_state.is_sure
        if self.stage != "polling":
            return self.stage == "asking"
        # Who has finished, or was asked about another round than its own, has a state all the same.
        nobody = all(
            attestation.reason in (NO_STATE, TAKES_OVER) for attestation in self.poll.votes.values()
        )
        return self.poll.paused and (self._tries >= TRIES_MAX or nobody)

    def cancel(self) -> None:
        self.stage, self.pieces = "idle", None
        self._kept.clear()

    def on_view_change(self, now: float) -> list[Effect]:
        """Whoever is skipped will not deliver; and who has come may be asked, too."""
        self._deadlines.keep(self.swarm.donors())
        if self.stage == "polling" and not self.poll.paused:
            return self._widen(now) + self._count(now)
        if self.stage == "asking" and (gone := self.waits_for.difference(self.swarm.donors())):
            if self.pieces is None:
                return self._another(now)
            self.pieces.release(gone)
            for peer in gone:
                self._backoff.failed(peer, now)
            return self._fetch(self.pieces, now)
        return []

    def on_hello(self, peer: PeerId, round_id: int) -> list[Effect]:
        """``peer`` says that it is in a round. When it was asked to vouch it may have had no state:
        then it is asked again. Else it would count as one that cannot have any, for as long as the
        others take to come to the round that was named."""
        if round_id > 0:
            self._note_state(peer)
        vote = self.poll.votes.get(peer)
        polls = self.stage == "polling" and not self.poll.paused
        if not polls or round_id == 0 or vote is None or vote.reason != NO_STATE:
            return []
        self.poll.forget(peer)
        return self._ask_for_attestations([peer])

    # --- what most of them say --------------------------------------------------------------------

    def _poll(self, now: float) -> list[Effect]:
        """Asks others to vouch: in turn before the round that each is in,
        and before one that we name."""
        self._tries += 1
        donors, named = self.swarm.donors(), 0
        if self._tries % 2 == 0 and self._may_name():
            ahead = min(AHEAD_MAX, AHEAD_ROUNDS * 4 ** (self._tries // 2 - 1))
            named = (
                sorted([self.swarm.round_of(peer) for peer in donors], reverse=True)[: self.need][
                    -1
                ]
                + ahead
            )
        patience_s = self.settings.membership.probe_interval_s
        self.poll = Poll(self.settings.seed, named, now + patience_s)
        return self._wait("polling", None, REMIND_S if donors else patience_s, now) + self._widen(
            now
        )

    def _may_name(self) -> bool:
        """Whether so many say where they are that no liar chooses the round that is named."""
        return len(self.swarm.donors()) >= self.need

    def _widen(self, now: float) -> list[Effect]:
        """Asks whoever was not asked yet, as far as that many are needed: first as few as can be
        enough, then all. Who has answered that it has none counts for nothing: all of our own
        branch may be looking for a state as we do."""
        fresh = [peer for peer in self.swarm.donors() if peer not in self.poll.asked]
        if self._tries == 1:
            fresh = fresh[: max(0, 2 * self.need - 1 - len(self.poll.asked) + self.poll.empty)]
        if fresh and not self.poll.asked:
            self.poll.set_deadline(now + self.settings.rounds.round_timeout_s)
        self.poll.ask(fresh)
        self._deadlines.ask(fresh, now)
        return self._ask_for_attestations(fresh)

    def _ask_for_attestations(self, peers: Iterable[PeerId]) -> list[Effect]:
        request = StateRequest(self.settings.lineage, self._nonce, self.poll.named, "attestation")
        return [Send(peer, request) for peer in peers]

    def _remind(self, now: float) -> list[Effect]:
        """Ask peers again that have not answered or had no state, as long as they have time to."""
        if self.poll.hurried or now >= self.poll.until:
            return self._conclude(now)
        self.poll.forget_refusals()
        timer = self.timers.set(min(now + REMIND_S, self.poll.until), DonorTimeout(self._nonce))
        self._patience = timer.token
        return [timer, *self._ask_for_attestations(self.poll.unanswered(self.swarm.donors()))]

    def _on_attestation(
        self, sender: PeerId, attestation: StateAttestation, now: float
    ) -> list[Effect]:
        outdated = self.stage != "polling" or self.poll.paused or attestation.nonce != self._nonce
        if outdated or sender not in self.poll.asked or sender in self.poll.votes:
            return []
        self.poll.votes[sender] = attestation
        if attestation.digest:
            self._note_state(sender)
            self._deadlines.claim(sender, now)
        else:
            self._record_refusal(sender, attestation.reason, now)
        # else it has not begun: its node answers for a trainer that is still to come
        if attestation.digest or attestation.round_id:
            self.swarm.record_round(sender, attestation.round_id)
        return self._count(now) if attestation.digest else self._widen(now) + self._count(now)

    def _count(self, now: float) -> list[Effect]:
        """Somebody has answered, or will not."""
        group = self.poll.largest(strict=self._tries <= STRICT_TRIES)
        if len(group) >= self.need:
            return self._agree(group, now)
        donors = self.swarm.donors()
        if all(peer in self.poll.votes or peer not in donors for peer in self.poll.asked):
            return self._conclude(now)
        answered = sum([bool(attestation.digest) for attestation in self.poll.votes.values()])
        if not self.poll.hurried and (
            answered >= self.need or len(self.poll.votes) > max(0, len(self.poll.asked) - self.need)
        ):
            self.poll.hurry()
            timer = self.timers.set(now + HURRY_S, DonorTimeout(self._nonce))
            cancelled, self._patience = self.timers.cancel(self._patience), timer.token
            return [*cancelled, timer]
        return []

    def _conclude(self, now: float) -> list[Effect]:
        """All have answered, or had their time, and too few say the same."""
        group = self.poll.largest(
            strict=self._tries <= STRICT_TRIES, failures=self._backoff.failures
        )
        if group and len(group) >= self._enough(now):
            where = {
                "round": self.poll.votes[group[0]].round_id,
                "attested_by": group,
                "need": self.need,
            }
            return [Report("unattested_state", where), *self._agree(group, now)]
        if group and self._tries % 2 and self._may_name():
            return self._poll(now)  # they are in different rounds
        return self._pause(now)

    def _pause(self, now: float) -> list[Effect]:
        self.poll.pause()
        self._no_state.turn_is_over(self._has_waited(now))
        return self._wait("polling", None, self.settings.membership.probe_interval_s, now)

    def _enough(self, now: float) -> int:
        """How many are enough, now that not all who must do say the same: as many as there are when
        nobody else can have a state, or when there are so few that liars could keep them from
        agreeing for ever."""
        without = {
            peer for peer, attestation in self.poll.votes.items() if attestation.reason == NO_STATE
        }
        known = sorted({*self.settings.peers, *self.swarm.met()} - {self.local})
        here = [peer for peer in known if peer in self.poll.votes or not self.swarm.is_gone(peer)]
        may_have = [peer for peer in here if peer not in without]
        within_reach = [peer for peer in self.swarm.donors() if peer not in without]
        # And the weights that a run begins with are one peer's at first.
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
        """Has one of ``group`` send what they all vouch for."""
        attestations = [self.poll.votes[peer] for peer in group]
        self.attestation, self.attestations = attestations[0], tuple(group)
        able = [
            peer for peer in self.swarm.donors() if peer in group and peer not in self._attackers
        ]
        # who has failed comes last
        self._sources = sorted(able, key=lambda peer: self._backoff.failures[peer])
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

    # --- taking -----------------------------------------------------------------------------------

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
            self._record_refusal(sender, offer.reason, now)
            return [
                Report("no_state", {"from": sender, "reason": offer.reason}),
                *self._another(now),
            ]
        self._note_state(sender)
        outline = PieceManifest.read(offer.outline) if offer.outline else None
        fits = (
            payload.digest == offer.digest
            and is_usable(self.source, offer)
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
        self._rest = payload
        self._backoff.delivered(sender)
        self.pieces = PieceFetcher(outline, self._kept, [sender, *self._sources])
        return self.giving.copy_own()

    def on_snapshot(self, event: SnapshotTaken, now: float) -> list[Effect]:
        """Note that the trainer has copied its state, for others or for pieces that are wanted."""
        effects = self.giving.on_snapshot(event, now)
        if self.pieces is None or self.stage != "asking":
            return effects
        self.pieces.keep_own(event.payload)
        return effects + self._fetch(self.pieces, now)

    def _record_refusal(self, sender: PeerId, reason: str, now: float) -> None:
        self._no_state.record_refusal(sender, reason)
        if reason == NO_STATE:
            self._deadlines.deny(sender)
        else:
            self._deadlines.note_state(sender)
        if reason in (BUSY, TAKES_OVER):  # it may give one later
            self._deadlines.claim(sender, now)

    def _note_state(self, peer: PeerId) -> None:
        """It has a state by now, or says so."""
        self._no_state.note_state(peer)
        self._deadlines.note_state(peer)

    def _restore(self, offer: StateOffer, payload: Payload) -> list[Effect]:
        self.stage, self.has_own, self._untouched = "restoring", False, False
        return [Restore(offer.round_id, payload, self.attestation is None or self._takes_settings)]

    def _fetch(self, pieces: PieceFetcher, now: float) -> list[Effect]:
        """Asks for what is missing, as far as those who have it may be asked;
        or hands on the whole."""
        offer, patience_s = self._offer, self.settings.rounds.round_timeout_s
        assert offer is not None
        if pieces.whole:
            assert self._rest is not None
            return self._restore(offer, pieces.joined(self._rest))
        rested = [peer for peer in self.swarm.donors() if not self._backoff.is_resting(peer, now)]
        fresh = pieces.ask(rested, now + patience_s)
        if not pieces.asked:
            return self._another(now)
        self.swarm.note_state(self.local, now + patience_s)
        lineage, cancelled = self.settings.lineage, self.timers.cancel(self._patience)
        timer = self.timers.set(min(pieces.asked.values()), DonorTimeout(self._nonce))
        self._patience = timer.token
        asks = [
            Send(peer, StateRequest(lineage, self._nonce, offer.round_id, "state", piece))
            for peer, piece in fresh
        ]
        return [*cancelled, timer, *asks]

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
            self._record_refusal(sender, offer.reason, now)
            effects += self._lose(pieces, sender, "no_state", offer.reason, now)
        elif not pieces.accept_piece(sender, offer.piece, payload):
            self._attackers.add(sender)
            effects += self._lose(
                pieces, sender, "bad_state", f"piece {offer.piece} is not what was vouched for", now
            )
        else:
            vouched = len(self.attestations) > self.settings.f
            self._deadlines.deliver(sender, pieces.outline.packed(), now, vouched)
        return effects + self._fetch(pieces, now)

    def _hurry(self, pieces: PieceFetcher, now: float) -> list[Effect]:
        """Some may have had their time."""
        late = pieces.overdue(now)
        lost = [
            self._lose(pieces, peer, "no_state", "has not sent its pieces in time", now)
            for peer in late
        ]
        return [effect for effects in lost for effect in effects] + self._fetch(pieces, now)

    def _lose(
        self, pieces: PieceFetcher, peer: PeerId, what: str, reason: str, now: float
    ) -> list[Effect]:
        """``peer`` does not deliver."""
        self._backoff.failed(peer, now)
        self._deadlines.fail(peer)
        pieces.exclude_peers([peer])
        self._sources = [source for source in self._sources if source != peer]
        return [Report(what, {"from": peer, "reason": reason})]

    def _is_agreed(self, offer: StateOffer, payload: Payload) -> bool:
        """Whether this is what was vouched for, if anything was."""
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

    @property
    def fits_no_state(self) -> bool:
        """Whether the trainer has refused so many states that Byzantine donors are no reason."""
        refused = self._refused
        return refused.total() >= REFUSALS_MAX and len(refused) > self.settings.f

    def on_restored(self, event: Restored, adopt: Adopt, now: float) -> tuple[list[Effect], bool]:
        """Returns effects, and whether the rounds may go on from the new state."""
        if (
            self.stage != "restoring"
            or self._offer is None
            or event.round_id != self._offer.round_id
        ):
            return [], False
        offer, self._offer = self._offer, None
        problem = event.error
        if problem and self.donor is not None:
            self._refused[self.donor] += 1
        if not problem:
            self._refused.clear()
            try:
                adopt(offer.round_id, offer.chain, core_of(offer))
            except (ValueError, OverflowError) as error:
                problem = str(error)
        if problem:
            report = Report("bad_state", {"from": self.donor, "reason": problem})
            return [report, *([] if self.fits_no_state else self._another(now))], False
        nbytes = offer.nbytes + (self.pieces.outline.nbytes if self.pieces is not None else 0)
        self.cancel()
        self.giving.restart()
        return [
            Report("restored", {"round": offer.round_id, "from": self.donor, "nbytes": nbytes})
        ], True
