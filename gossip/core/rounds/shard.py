"""One shard of one rolling round, as stored by one peer: the present attempt, and the updates that
the peer has collected if it serves the shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal, TypeAlias

from gossip.core.events import Contributed, Payload, Report, Row, Token
from gossip.core.frozen import record
from gossip.core.messages import (
    COLLECTED_BYTES_MAX,
    Collected,
    Commit,
    Contribution,
    PeerId,
    Update,
    is_further,
)
from gossip.core.settings import FORWARDED_MAX
from gossip.topologies import Roster

from .arrivals import Transfer

NOBODY: frozenset[PeerId] = frozenset()
Mode: TypeAlias = Literal["off", "following", "active"]


def bytes_of(message: Update | Commit, shard_bytes: Sequence[int]) -> int:
    """Return the length in bytes that the payload must have by the local layout; -1 if the shard
    does not exist."""
    if message.shard >= len(shard_bytes):
        return -1
    empty = message.samples == 0 if isinstance(message, Update) else not message.digest
    return 0 if empty else shard_bytes[message.shard]


@record
class RoundTimer:
    """Timer of a shard.

    ``give_up``: abandon the server of ``attempt``. ``grace``: check again whether to close.
    ``request``: request missing updates. ``pulse``: detect a pause of this process.
    ``measurements_overdue``: check for missing statistics of other servers. ``serve_postponed``:
    serve the attempt that was postponed after a pause.
    """

    what: Literal[
        "give_up",
        "grace",
        "request",
        "pulse",
        "measurements_overdue",
        "serve_postponed",
    ]
    round_id: int
    shard: int
    attempt: int


@dataclass(slots=True)
class PresentRound:
    """State of the present round that all parts of ``RollingRounds`` share.

    ``mode`` is ``off`` until ``start``. It is ``following`` while the peer applies commits but is
    not in the roster, and ``active`` while the peer is in the roster.
    """

    round_id: int = 0
    roster: Roster = field(default_factory=lambda: Roster(()))
    locked: frozenset[PeerId] = NOBODY  # Peers in quarantine: no server waits for their updates.
    proven: frozenset[PeerId] = NOBODY  # Peers in ``locked`` that are proven Byzantine.
    parent: bytes = b""  # Hash of the last commit.
    lineage: bytes = b""
    mode: Mode = "off"
    began_at: float = 0.0
    main_peer: PeerId = -1  # peer with the lowest id that may serve
    shards: list[ShardRound] = field(default_factory=list)
    # shards of the last round that the peer entered, also after it has stopped
    entered: list[ShardRound] = field(default_factory=list)
    own: Contributed | None = None  # the local update

    def place(self, shard: ShardRound) -> tuple[bytes, int, int, int, bytes]:
        """Return the first fields of a message about the present attempt of a shard."""
        return self.lineage, self.round_id, shard.index, shard.attempt, self.parent

    def validate_state(self) -> None:
        """Check the invariants of the round."""
        assert self.proven <= self.locked, "a proven Byzantine peer is in quarantine"
        if self.mode == "off":
            assert not self.shards, "a peer out of the rounds has no shards"
        else:
            assert self.shards is self.entered, "it has entered the present round"
            assert self.own is None or self.own.round_id == self.round_id, "an update of its round"
        for shard in self.shards:
            shard.validate_state(self.roster)

    def lacking(self) -> list[ShardRound]:
        """Return the shards without a commit."""
        return [shard for shard in self.shards if shard.commit is None]


@dataclass(slots=True)
class CrossShardProgress:
    """Progress of the server of a shard in a cross-shard decision. ``step`` is the step that the
    rule computes, or ``measured`` while the server waits after ``measure``.

    ``why``: reason for the step ``nothing``, in which the rule gets no rows.
    """

    step: Literal["measure", "measured", "decide", "combine", "nothing"] = "measure"
    statistics: bytes = b""
    rows: tuple[Row, ...] = ()  # Updates that enter the aggregate.
    outside: tuple[Row, ...] = ()  # Updates of peers in quarantine, which are only measured.
    verdict: tuple[Contribution, ...] = ()  # Contributors in the commit of the first shard.
    # Digests of the statistics from which the decision is computed.
    measured: tuple[bytes, ...] = ()
    why: str = ""

    def cancel_decision(self) -> None:
        """Ignore the decision that the rule is computing, because it is no longer needed."""
        if self.step == "decide":
            self.step = "measured"


@dataclass(slots=True)
class ServedAttempt:
    """Latest attempt that this peer serves, with its updates and timers."""

    attempt: int = -1  # -1 if none is served
    answers: dict[PeerId, tuple[Update, Payload | None]] = field(default_factory=dict)
    # latest attempt for which each peer has withdrawn its update; if that update arrives later, it
    # is dropped
    withdrawn: dict[PeerId, int] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()  # Updates that the rule aggregates.
    # Updates of quarantined peers, which are only measured. If the rule runs in steps, ``rows``
    # contains them as well.
    outside: tuple[Row, ...] = ()
    collected: tuple[Collected, ...] = ()
    kind: int = 0  # Kind of the updates in ``rows``.
    first_at: float = 0.0  # Arrival time of the first update.
    grace: Token | None = None
    grace_at: float = 0.0
    request_timer: Token | None = None
    asked: set[PeerId] = field(default_factory=set)  # Peers that got a request for their update.
    # Peers that replied that they take part in no round.
    in_no_round: set[PeerId] = field(default_factory=set)
    ticket: int | None = None  # ticket of the running rule; None if no rule runs
    cross_shard_progress: CrossShardProgress | None = None
    measurements_overdue: Token | None = None  # timeout of the statistics of other servers

    @property
    def callers(self) -> int:
        """Number of peers that take part in a collective operation: peers that sent a value and no
        samples."""
        return sum([1 for update, _ in self.answers.values() if update.collective])

    def usable(self) -> list[PeerId]:
        """Return the peers that have sent a finite update with samples."""
        return [
            peer
            for peer, (update, payload) in self.answers.items()
            if payload is not None and payload.finite and update.samples
        ]

    def find_kind(self, peers: Collection[PeerId]) -> int:
        """Return the most frequent kind of step of these peers. If several kinds are equally
        frequent, return a first step rather than a further step, and then the lowest kind."""
        kinds = Counter([self.answers[peer][0].kind for peer in peers])
        return min(kinds, key=lambda kind: (-kinds[kind], is_further(kind), kind))

    def close(self, left_out: Collection[PeerId], measured: Collection[PeerId], few: int) -> None:
        """Fix the input of the rule: the finite updates with samples, except the updates of the
        peers ``left_out``. The updates of the peers ``measured``, a subset of ``left_out``, are
        only measured. If there are more than ``few`` values of a collective operation, no update is
        used."""
        self.collected = _fitting(
            [
                Collected(peer, update.collective)
                for peer, (update, _) in sorted(self.answers.items())
                if update.collective
            ]
        )
        usable = [
            Row(peer, payload, update.samples)
            for peer, (update, payload) in sorted(self.answers.items())
            if payload is not None and payload.finite and update.samples
        ]
        self.rows = tuple([row for row in usable if row.peer not in left_out])
        self.outside = tuple([row for row in usable if row.peer in measured])
        if len(self.collected) > few:
            self.rows = self.outside = ()
            self.kind = 0

    @property
    def faulty(self) -> tuple[PeerId, ...]:
        """Peers that sent a non-finite update, ascending."""
        return tuple(
            sorted(
                p
                for p, (_, payload) in self.answers.items()
                if payload is not None and not payload.finite
            )
        )

    def mean_loss(self, rows: tuple[Row, ...]) -> float | None:
        """Return the mean loss, weighted by samples. A message may contain any finite loss, so the
        weights are normalized first: a sum of weighted losses could overflow."""
        losses = [(self.answers[row.peer][0].loss, row.samples) for row in rows]
        known = [(loss, samples) for loss, samples in losses if loss is not None]
        total = sum(count for _, count in known)
        mean = sum(loss * (count / total) for loss, count in known) if total else None
        return mean if mean is not None and isfinite(mean) else None


@dataclass(slots=True)
class AttemptClaims:
    """Claims about later attempts of a shard (``later_turns.py``)."""

    came_at: float = 0.0  # Start of the present attempt.
    # Claimant, if only its unexplained claim led to the present attempt.
    led_here: PeerId | None = None
    skipped: int = 0  # Number of attempts that were skipped because of claims.
    deferred: dict[PeerId, int] = field(default_factory=dict)  # Latest deferred attempt, by peer.
    granted: dict[PeerId, int] = field(default_factory=dict)  # Number of granted claims, by peer.


@dataclass(slots=True)
class ServerWait:
    """Wait for the server of an attempt. Reports of peers that they receive payloads or compile
    extend this wait. ``transfers`` and ``compiles`` contain the start of the extension, by peer."""

    attempt: int = -1  # attempt of the running timeout
    since: float = 0.0
    transfers: dict[PeerId, float] = field(default_factory=dict)
    compiles: dict[PeerId, float] = field(default_factory=dict)


@dataclass(slots=True)
class ShardRound:
    """One shard of one round. Attempt a is served by ``order[a % len(order)]``.

    Attempts only increase. A peer at attempt a records a commit only if ``Commit.attempt`` is at
    least a. The server of attempt a records any commit. A peer that stores a commit re-issues it
    under the attempt that the receiver names, so ``Commit.attempt`` may exceed ``made_at``.
    """

    index: int
    order: tuple[PeerId, ...]
    attempt: int = 0
    give_up: Token | None = None  # Timeout of the server of ``attempt``.
    pulse: Token | None = None  # Pending pulse, while this peer is the server of ``attempt``.
    # Latest attempt that this peer has postponed because it was paused, and the sender of the
    # update for this attempt.
    postponed_attempt: int = -1
    postponed_from: PeerId = -1
    serve_postponed: Token | None = None  # Fires when this peer may serve the postponed attempt.
    declined_attempt: int = -1  # Latest attempt that its server has declined to serve.
    timeouts: int = 0  # Number of servers that timed out.
    commit_transfer: Transfer | None = None  # Transfer of a commit to this peer.
    server_wait: ServerWait = field(default_factory=ServerWait)
    # start of the wait for each missing peer that reports that it receives payloads, or that it
    # compiles
    update_transfers: dict[PeerId, float] = field(default_factory=dict)
    update_compiles: dict[PeerId, float] = field(default_factory=dict)
    claims: AttemptClaims = field(default_factory=AttemptClaims)
    served: ServedAttempt = field(default_factory=ServedAttempt)
    # Replica digests in the updates, by sender.
    replicas: dict[PeerId, bytes] = field(default_factory=dict)
    blamed: int = -1  # Latest attempt of shard 0 that reported overdue statistics of this shard.

    doubted: set[PeerId] = field(default_factory=set)  # Peers that sent a doubtful result.
    # Senders of a result that this peer has rejected. These senders have recorded the result, and
    # send no update.
    rejected_from: set[PeerId] = field(default_factory=set)
    commit: Commit | None = None
    payload: Payload | None = None
    made_here: bool = False
    # Last attempt in which each commit was forwarded; the key is (server, digest).
    _forwarded: dict[tuple[PeerId, bytes], int] = field(default_factory=dict)

    def validate_state(self, roster: Roster) -> None:
        """Check the invariants of the shard in a round of ``roster``."""
        served = self.served
        assert served.attempt <= self.attempt, "no attempt is served before its turn"
        assert served.answers.keys() <= {*roster}, "only peers of the roster answer"
        assert self.commit is None or not self.tokens(), "a committed shard has no timers"
        assert self.commit is None or served.ticket is None, "a committed shard runs no rule"

    def server_of(self, attempt: int) -> PeerId:
        return self.order[attempt % len(self.order)]

    def serve(self, attempt: int) -> ServedAttempt:
        """Start to collect the updates for ``attempt``, and drop the updates for an earlier
        attempt."""
        withdrawn = {p: of for p, of in self.served.withdrawn.items() if of >= attempt}
        self.served = ServedAttempt(attempt, withdrawn=withdrawn)
        return self.served

    def withdraw_update(self, peer: PeerId, attempt: int) -> None:
        """Discard the update of ``peer`` for ``attempt``, unless the rule already uses it."""
        served = self.served
        served.withdrawn[peer] = max(attempt, served.withdrawn.get(peer, -1))
        if attempt == served.attempt and served.ticket is None:
            served.answers.pop(peer, None)

    @property
    def turn(self) -> dict[str, int]:
        """Return the shard, the present attempt and its server, for a report."""
        return {
            "shard": self.index,
            "attempt": self.attempt,
            "server": self.server_of(self.attempt),
        }

    def mark_forwarded(self, commit: Commit) -> bool:
        """Mark ``commit`` as forwarded to the present server.

        Returns: False if the commit was already forwarded in the present attempt, or if too many
            commits were forwarded. Without this check, two peers at different attempts, each of
            which is the server of the other peer, would exchange a commit forever.
        """
        key = commit.server, commit.digest
        if self._forwarded.get(key) == self.attempt or (
            key not in self._forwarded and len(self._forwarded) >= FORWARDED_MAX
        ):
            return False
        self._forwarded[key] = self.attempt
        return True

    def record_commit(
        self, commit: Commit, payload: Payload | None, made_here: bool
    ) -> list[Token]:
        """Record the commit of the shard. Return the tokens of its timers, which must be
        cancelled."""
        tokens = self.tokens()
        self.commit, self.payload, self.made_here = commit, payload, made_here
        if self.served.attempt >= 0:
            self.served = ServedAttempt(self.served.attempt)
        self.commit_transfer = self.give_up = self.pulse = self.serve_postponed = None
        return tokens

    def tokens(self) -> list[Token]:
        """Return the tokens of all timers of this shard."""
        served = self.served
        of_attempt = served.grace, served.request_timer, served.measurements_overdue
        timers = self.give_up, self.pulse, self.serve_postponed, *of_attempt
        return [token for token in timers if token is not None]


def _fitting(given: Sequence[Collected]) -> tuple[Collected, ...]:
    """Return the values of a collective operation that fit in a commit, ascending by peer. Small
    values have priority, so that one large value does not displace several small values."""
    fitting: list[Collected] = []
    left = COLLECTED_BYTES_MAX
    for each in sorted(given, key=lambda each: len(each.data)):
        if len(each.data) <= left:
            fitting.append(each)
            left -= len(each.data)
    return tuple(sorted(fitting, key=lambda each: each.peer))


def attempt_report(round_id: int, shard: ShardRound, reason: str) -> Report:
    """Return the report of a change of attempt."""
    return Report("attempt", {"round": round_id, **shard.turn, "reason": reason})
