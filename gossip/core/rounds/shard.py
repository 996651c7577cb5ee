"""One shard of one rolling round, as one peer sees it: the present attempt, and the updates that
this peer has collected if it serves the shard."""

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
    """Return the bytes that the payload must have by the local layout; -1 if there is no such
    shard."""
    if message.shard >= len(shard_bytes):
        return -1
    empty = message.samples == 0 if isinstance(message, Update) else not message.digest
    return 0 if empty else shard_bytes[message.shard]


@record
class RoundTimer:
    """Timer of a shard.

    ``give_up``: abandon the server of ``attempt``. ``grace``: check again whether to close.
    ``request``: request missing updates. ``pulse``: find a pause of this process.
    ``measurements_overdue``: measurements of other servers are late. ``serve_postponed``: serve the
    attempt that was rejected after a pause.
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
    """The present round, for all parts of the rounds.

    ``mode``: ``off`` until ``start``, ``following`` while the peer applies commits without being in
    the roster, then ``active``.
    """

    round_id: int = 0
    roster: Roster = field(default_factory=lambda: Roster(()))
    locked: frozenset[PeerId] = NOBODY  # in quarantine: no server waits for their updates
    proven: frozenset[PeerId] = NOBODY  # the locked peers that are proven Byzantine
    parent: bytes = b""  # hash of the last commit
    lineage: bytes = b""
    mode: Mode = "off"
    began_at: float = 0.0
    main_peer: PeerId = -1  # the lowest peer that may serve
    shards: list[ShardRound] = field(default_factory=list)
    # shards of the round that the peer has entered last, also after it has left the rounds
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
    """Progress of a shard's server if the shards decide together. ``step``: the computation of the
    rule; ``measured`` follows ``measure``.

    ``why``: the reason for the step ``nothing``, in which the rule gets no rows.
    """

    step: Literal["measure", "measured", "decide", "combine", "nothing"] = "measure"
    statistics: bytes = b""
    rows: tuple[Row, ...] = ()  # updates that count
    outside: tuple[Row, ...] = ()  # updates of peers in quarantine, which are only measured
    verdict: tuple[Contribution, ...] = ()  # the decision of the first shard
    measured: tuple[bytes, ...] = ()  # digests of the statistics behind the decision
    why: str = ""

    def cancel_decision(self) -> None:
        """Drop the decision that the rule computes. It is not needed any more."""
        if self.step == "decide":
            self.step = "measured"


@dataclass(slots=True)
class ServedAttempt:
    """Last attempt that this peer serves, with its updates and timers."""

    attempt: int = -1  # none
    answers: dict[PeerId, tuple[Update, Payload | None]] = field(default_factory=dict)
    # latest attempt with a withdrawn update, by peer: an update that comes later is dropped
    withdrawn: dict[PeerId, int] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()  # updates that the rule gets
    # updates of peers in quarantine, which are only measured; in steps ``rows`` has them, too
    outside: tuple[Row, ...] = ()
    collected: tuple[Collected, ...] = ()
    kind: int = 0  # of the updates among ``rows``
    first_at: float = 0.0  # when the first answer came
    grace: Token | None = None
    grace_at: float = 0.0
    request_timer: Token | None = None
    asked: set[PeerId] = field(default_factory=set)  # for their updates
    # peers that replied that they take part in no round
    in_no_round: set[PeerId] = field(default_factory=set)
    ticket: int | None = None  # the rule is running
    cross_shard_progress: CrossShardProgress | None = None
    measurements_overdue: Token | None = None  # timeout of other servers' measurements

    @property
    def callers(self) -> int:
        """Number of peers that take part in a collective operation, with a value and no
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
        """Return the kind of step that most of these peers make. Among equally frequent kinds: a
        step of the run, then the lowest."""
        kinds = Counter([self.answers[peer][0].kind for peer in peers])
        return min(kinds, key=lambda kind: (-kinds[kind], is_further(kind), kind))

    def close(self, left_out: Collection[PeerId], measured: Collection[PeerId], few: int) -> None:
        """Fix the updates that go into the rule: finite ones with samples, without those of
        ``left_out``; ``measured`` of these are measured. With more than ``few`` values of a
        collective operation, no update counts."""
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
        """Peers that sent an update that is not finite, ascending."""
        return tuple(
            sorted(
                p
                for p, (_, payload) in self.answers.items()
                if payload is not None and not payload.finite
            )
        )

    def mean_loss(self, rows: tuple[Row, ...]) -> float | None:
        """Return the mean loss, weighted by samples. A message may hold any finite number, so the
        weights are divided first and nothing overflows."""
        losses = [(self.answers[row.peer][0].loss, row.samples) for row in rows]
        known = [(loss, samples) for loss, samples in losses if loss is not None]
        total = sum(count for _, count in known)
        mean = sum(loss * (count / total) for loss, count in known) if total else None
        return mean if mean is not None and isfinite(mean) else None


@dataclass(slots=True)
class AttemptClaims:
    """Claims about later attempts of a shard (``later_turns.py``)."""

    came_at: float = 0.0  # start of the present attempt
    led_here: PeerId | None = None  # claimant, if its unexplained claim alone led to that attempt
    skipped: int = 0  # number of attempts skipped on claims
    deferred: dict[PeerId, int] = field(default_factory=dict)  # latest claimed attempt, by peer
    granted: dict[PeerId, int] = field(default_factory=dict)  # number of granted claims, by peer


@dataclass(slots=True)
class ServerWait:
    """Wait for the server of an attempt. Claims of peers that they receive payloads, or compile,
    extend it: ``transfers`` and ``compiles`` have the time of each claim."""

    attempt: int = -1  # attempt of the running timeout
    since: float = 0.0
    transfers: dict[PeerId, float] = field(default_factory=dict)
    compiles: dict[PeerId, float] = field(default_factory=dict)


@dataclass(slots=True)
class ShardRound:
    """One shard of one round. Attempt a is served by ``order[a % len(order)]``.

    Attempts only grow. A peer at attempt a records a commit only if ``Commit.attempt`` is at least
    a; the server of a records any. A holder re-issues a commit under the attempt that the receiver
    names, so ``Commit.attempt`` may exceed ``made_at``.
    """

    index: int
    order: tuple[PeerId, ...]
    attempt: int = 0
    give_up: Token | None = None  # timeout of the server of ``attempt``
    pulse: Token | None = None  # fires regularly while this peer is that server
    # the last attempt that this peer did not serve after a pause, and the sender of its update
    postponed_attempt: int = -1
    postponed_from: PeerId = -1
    serve_postponed: Token | None = None  # fires when this peer may serve it
    declined_attempt: int = -1  # the last attempt that its server has declined
    timeouts: int = 0  # servers given up by timeout
    commit_transfer: Transfer | None = None  # a commit that is being received
    server_wait: ServerWait = field(default_factory=ServerWait)
    # awaited peers that claim to receive payloads, and those that claim to compile
    update_transfers: dict[PeerId, float] = field(default_factory=dict)
    update_compiles: dict[PeerId, float] = field(default_factory=dict)
    claims: AttemptClaims = field(default_factory=AttemptClaims)
    served: ServedAttempt = field(default_factory=ServedAttempt)
    replicas: dict[PeerId, bytes] = field(default_factory=dict)  # digests that came with updates
    blamed: int = -1  # latest attempt of shard 0 that reported overdue statistics of this one

    doubted: set[PeerId] = field(default_factory=set)  # peers that sent a doubtful result
    # senders of a result that this peer rejected: they store it as a commit, and send no update
    rejected_from: set[PeerId] = field(default_factory=set)
    commit: Commit | None = None
    payload: Payload | None = None
    made_here: bool = False
    # attempt in which a commit was last forwarded, by server and digest
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
        """Start to collect updates of ``attempt``, and drop those of an earlier one."""
        withdrawn = {p: of for p, of in self.served.withdrawn.items() if of >= attempt}
        self.served = ServedAttempt(attempt, withdrawn=withdrawn)
        return self.served

    def withdraw_update(self, peer: PeerId, attempt: int) -> None:
        """Discard the update of ``peer`` of ``attempt``. If the rule already uses it, it stays."""
        served = self.served
        served.withdrawn[peer] = max(attempt, served.withdrawn.get(peer, -1))
        if attempt == served.attempt and served.ticket is None:
            served.answers.pop(peer, None)

    @property
    def turn(self) -> dict[str, int]:
        """Return the present server and attempt, for a report."""
        return {
            "shard": self.index,
            "attempt": self.attempt,
            "server": self.server_of(self.attempt),
        }

    def mark_forwarded(self, commit: Commit) -> bool:
        """Mark ``commit`` as forwarded to the present server.

        Returns: False if it was forwarded in this attempt already, or if too many were. Otherwise
        two peers at different attempts, each with the other as its server, would exchange it
        forever.
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
        """Record the commit of the shard. Return the tokens of its timers, which are no longer
        needed."""
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
    """Return as many values of a collective operation as a commit can hold, ascending by peer. The
    smallest are kept first, so that one large value does not crowd out the others."""
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
