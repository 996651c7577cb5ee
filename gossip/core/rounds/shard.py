"""One shard of one rolling round, as one peer sees it: the present attempt, and what this peer has
collected if it serves the shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal

from gossip.core.events import Payload, Report, Row, Token
from gossip.core.messages import (
    COLLECTED_BYTES_MAX,
    Collected,
    Commit,
    Contribution,
    PeerId,
    Update,
    is_further,
)

from .arrivals import Transfer

REASON_CHARACTERS = 200  # of why nothing could be aggregated; a longer text would not fit a message

PASSED_ON_MAX = 64  # different commits of one round; no more than a few are ever honest


def bytes_of(message: Update | Commit, shard_bytes: Sequence[int]) -> int:
    """The size that its payload must have, by the layout that this peer knows; -1: there is no such
    shard."""
    if message.shard >= len(shard_bytes):
        return -1
    empty = message.samples == 0 if isinstance(message, Update) else not message.digest
    return 0 if empty else shard_bytes[message.shard]


@dataclass(slots=True)
class CrossShardProgress:
    """How far the server of a shard is where shards decide together. ``step`` is what the rule is
    at; with ``measured`` it has answered ``measure``.

    ``why`` is the reason for the step ``nothing``: the rule is asked about no rows at all.
    """

    step: Literal["measure", "measured", "decide", "combine", "nothing"] = "measure"
    statistics: bytes = b""
    rows: tuple[Row, ...] = ()  # those that count
    outside: tuple[Row, ...] = ()  # of peers in quarantine, which all have measured
    verdict: tuple[Contribution, ...] = ()  # that is followed
    measured: tuple[bytes, ...] = ()  # digests of what the decision is made on
    why: str = ""

    def cancel_decision(self) -> None:
        """Drop the decision that the rule was asked for. It is not needed any more."""
        if self.step == "decide":
            self.step = "measured"


@dataclass(slots=True)
class ShardRound:
    """Attempt a is served by ``order[a % len(order)]``. Attempts only grow: having moved on is a
    promise to take no result of an earlier attempt, unless a server of this attempt or a later
    one re-issues it."""

    index: int
    order: tuple[PeerId, ...]
    attempt: int = 0
    give_up: Token | None = None  # fires when the server of ``attempt`` has had its time
    pulse: Token | None = None  # fires every now and then while this peer is that server
    # the last attempt that this peer was to serve and did not, because it had stood still
    refused: int = -1
    refused_of: PeerId = -1  # on whose word
    # the last attempt whose server has said that it does not serve
    declined: int = -1
    again: Token | None = None  # fires when it serves once more
    given_to: int = -1  # the attempt whose server has its time
    given_at: float = 0.0  # since when
    given_up: int = 0  # servers that have had their time in vain
    result: Transfer | None = None  # a commit that is on its way here
    # whose word gives that server more time, since when
    given_on_word: dict[PeerId, float] = field(default_factory=dict)
    # whose update is waited for on its word, since when
    awaited_on_word: dict[PeerId, float] = field(default_factory=dict)
    # the same of those who say that they compile
    given_to_compile: dict[PeerId, float] = field(default_factory=dict)
    awaited_to_compile: dict[PeerId, float] = field(default_factory=dict)

    # Words of later turns (``later_turns.py``).
    came_at: float = 0.0  # to the present attempt
    on_word: PeerId | None = None  # whose word alone has brought us there
    jumped: int = 0  # attempts that were passed over on such words
    later: dict[PeerId, int] = field(default_factory=dict)  # whose word is put off: the latest
    granted: dict[PeerId, int] = field(default_factory=dict)  # how often it was taken up then

    # As a server: what has come for the attempt served.
    serving: int | None = None
    answers: dict[PeerId, tuple[Update, Payload | None]] = field(default_factory=dict)
    replicas: dict[PeerId, bytes] = field(default_factory=dict)  # digests that came with them
    # who has taken back its update, of which attempt: it may be on its way still
    taken_back: dict[PeerId, int] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    # of peers in quarantine, which are only measured; in steps they are among ``rows``, too
    outside: tuple[Row, ...] = ()
    collected: tuple[Collected, ...] = ()
    kind: int = 0  # of the updates among ``rows``
    first_at: float = 0.0
    grace: Token | None = None
    grace_at: float = 0.0
    query: Token | None = None
    asked: set[PeerId] = field(default_factory=set)  # for their updates
    # who has answered that it takes part in no round
    had_nothing: set[PeerId] = field(default_factory=set)
    ticket: int | None = None  # the rule is running
    cross_shard_progress: CrossShardProgress | None = None
    lack: Token | None = None  # fires when what others have measured should be here
    blamed: int = -1  # attempt of the first shard whose server had this one handed on last

    doubted: set[PeerId] = field(default_factory=set)  # who has handed us results that we doubt
    # who has handed us a result that was refused: they send no update any more
    spent: set[PeerId] = field(default_factory=set)
    commit: Commit | None = None
    payload: Payload | None = None
    made_here: bool = False
    # what the server of which attempt was told of
    _passed_on: dict[tuple[PeerId, bytes], int] = field(default_factory=dict)

    def server_of(self, attempt: int) -> PeerId:
        return self.order[attempt % len(self.order)]

    def serve(self, attempt: int) -> None:
        """Starts collecting for ``attempt``; what came for an earlier one was sent under a promise
        that no longer binds."""
        self.serving, self.answers, self.rows, self.ticket, self.cross_shard_progress = (
            attempt,
            {},
            (),
            None,
            None,
        )
        self.outside = ()
        self.taken_back = {p: of for p, of in self.taken_back.items() if of >= attempt}
        self.asked.clear()
        self.had_nothing.clear()

    def withdraw_update(self, peer: PeerId, attempt: int) -> None:
        """Discard the update of ``peer`` under ``attempt``. If the rule already runs on it, it
        stays."""
        self.taken_back[peer] = max(attempt, self.taken_back.get(peer, -1))
        if attempt == self.serving and self.ticket is None:
            self.answers.pop(peer, None)

    @property
    def turn(self) -> dict[str, int]:
        """Return the present server and attempt, for a report."""
        return {
            "shard": self.index,
            "attempt": self.attempt,
            "server": self.server_of(self.attempt),
        }

    def passes_on(self, commit: Commit) -> bool:
        """Whether the server of our attempt is to hear of a commit that we may not take: of each
        once in an attempt.

        Two peers at different attempts, of which each thinks that the other serves, would hand it
        to and fro for ever.
        """
        key = commit.server, commit.digest
        if self._passed_on.get(key) == self.attempt or (
            key not in self._passed_on and len(self._passed_on) >= PASSED_ON_MAX
        ):
            return False
        self._passed_on[key] = self.attempt
        return True

    @property
    def callers(self) -> int:
        """How many have given something to a collective operation, and no update."""
        return sum([1 for update, _ in self.answers.values() if update.collective])

    def usable(self) -> list[PeerId]:
        """Return the peers that have sent a finite update with samples."""
        return [
            peer
            for peer, (update, payload) in self.answers.items()
            if payload is not None and payload.finite and update.samples
        ]

    def find_kind(self, peers: Collection[PeerId]) -> int:
        """Return the kind of step that most of these peers are at. Of several with as many: a step
        of the run, and the one with the least number."""
        kinds = Counter([self.answers[peer][0].kind for peer in peers])
        return min(kinds, key=lambda kind: (-kinds[kind], is_further(kind), kind))

    def close(self, left_out: Collection[PeerId], measured: Collection[PeerId], few: int) -> None:
        """Fixes which updates go into the rule: finite ones with samples, but for those of
        ``left_out``; and which of those are ``measured``. None in a collective operation, which up
        to ``few`` alone cannot make of it."""
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
        """Return the peers that sent something that is proof of a fault."""
        return tuple(
            sorted(
                p
                for p, (_, payload) in self.answers.items()
                if payload is not None and not payload.finite
            )
        )

    def mean_loss(self, rows: tuple[Row, ...]) -> float | None:
        """Sample-weighted. A peer may say any finite number, and a message holds no other: weights
        first, so none overflows."""
        told = [(self.answers[row.peer][0].loss, row.samples) for row in rows]
        known = [(loss, samples) for loss, samples in told if loss is not None]
        total = sum(count for _, count in known)
        mean = sum(loss * (count / total) for loss, count in known) if total else None
        return mean if mean is not None and isfinite(mean) else None

    def hold(self, commit: Commit, payload: Payload | None, made_here: bool) -> None:
        self.commit, self.payload, self.made_here = commit, payload, made_here
        self.answers, self.rows, self.cross_shard_progress, self.result = {}, (), None, None
        self.outside = self.collected = ()
        self.give_up = self.grace = self.query = self.pulse = self.lack = self.again = None

    def tokens(self) -> list[Token]:
        """Return the tokens of all its timers."""
        timers = self.give_up, self.grace, self.query, self.pulse, self.lack, self.again
        return [token for token in timers if token is not None]


def _fitting(given: Sequence[Collected]) -> tuple[Collected, ...]:
    """Return as many rejections as a commit can hold, in the same order. The smallest come first: a
    peer that gives more than its part crowds out nobody else."""
    fitting: list[Collected] = []
    left = COLLECTED_BYTES_MAX
    for each in sorted(given, key=lambda each: len(each.data)):
        if len(each.data) <= left:
            fitting.append(each)
            left -= len(each.data)
    return tuple(sorted(fitting, key=lambda each: each.peer))


def attempt_report(round_id: int, shard: ShardRound, reason: str) -> Report:
    """Why it was handed on."""
    return Report("attempt", {"round": round_id, **shard.turn, "reason": reason})
