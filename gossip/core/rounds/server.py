"""The server's side of a rolling round: collect updates, close the attempt once enough have come,
run the aggregation rule, build the commit. To close is to fix the updates that the rule gets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from gossip.core.events import Aggregate, Aggregated, Effect, Payload, Report, Row, Send, SetTimer
from gossip.core.frozen import record
from gossip.core.ledger import CommitLog, agree, compare
from gossip.core.messages import (
    Accusation,
    AuditVote,
    Commit,
    Contribution,
    PeerId,
    Rejection,
    Update,
    UpdateRequest,
)
from gossip.core.settings import CoreSettings
from gossip.core.timers import Timers
from gossip.core.view import View
from gossip.topologies import Roster

from .arrivals import TransferTracker
from .compiling import CompileTracker
from .cover import cover
from .departures import Departures
from .punctuality import LatenessTracker
from .quorum import needed_by_rule, quorum_of
from .shard import REASON_CHARACTERS, CrossShardProgress, ShardRound
from .timeouts import Deadline

CLOSE_BEFORE_GIVING_UP = 0.7
"""Fraction of the round timeout after which a server closes: before its participants give up on
it."""

LOOK_EVERY_S = 0.25
"""Interval of the checks whether bytes still arrive."""

BACK_OFF_MAX = 3
"""Largest number of doublings of a server's timeout where payloads take time: one for each server
that this peer has given up, or for each pass over the order."""

PULSE_S = 0.1
"""Interval of a timer by which a server notices its own pause before the others' heartbeats do."""


NOBODY: frozenset[PeerId] = frozenset()


@record
class RoundTimer:
    """Timer of a shard.

    ``give_up``: give up the server of ``attempt``. ``grace``: check again whether to close.
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


class Server:
    """Work of a peer for the shards whose turn it is to serve.

    Args:
        skip_reason: "" for a peer that can be expected.
        joining: Peers that are ready to be in the next roster; it changes.
    """

    def __init__(
        self,
        local: PeerId,
        settings: CoreSettings,
        timers: Timers[Any],
        deadline: Deadline,
        skip_reason: Callable[[PeerId], str],
        joining: Collection[PeerId],
        departures: Departures,
        view: View,
        transfer_tracker: TransferTracker | None = None,
        awaits_commit: Callable[[float], bool] = lambda now: False,
    ) -> None:
        self.local, self.settings, self.timers, self.deadline = local, settings, timers, deadline
        self.lateness, self.transfer_tracker = (
            LatenessTracker(deadline),
            transfer_tracker or TransferTracker(),
        )
        self.compile_tracker = CompileTracker()
        self.skip_reason, self.joining, self.departures = skip_reason, joining, departures
        self.view, self.is_gone = view, view.is_gone
        self.awaits_commit = awaits_commit
        self.round_id = 0
        self._came_into = -1  # the last round that this peer began with an adopted state
        self.roster = Roster(())
        self.locked: frozenset[PeerId] = frozenset()
        self.proven: frozenset[PeerId] = frozenset()
        self.parent = b""
        self.log: CommitLog | None = None
        self.cross_shard = False  # the shards of this round decide together
        # peers whose updates the shards need
        self.required_peers: frozenset[PeerId] = frozenset()
        self._tickets: dict[int, tuple[ShardRound, int]] = {}
        self._next_ticket = 1
        self._short = 0  # by how much the last round tolerated fewer than f

    def begin(
        self,
        round_id: int,
        roster: Roster,
        standing: tuple[frozenset[PeerId], frozenset[PeerId]],
        parent: bytes,
        log: CommitLog | None = None,
        shards: int = 1,
    ) -> None:
        """Begin a round.

        Args:
            standing: Peers in quarantine, whose updates no server waits for and no rule sees; and
                those of them that are proven Byzantine.
            log: Commits of the rounds before, for rules that use the last result.
            shards: Number of shards.
        """
        self.round_id, self.roster, self.parent = round_id, roster, parent
        self.log = log
        self.locked, self.proven = standing
        self.cross_shard, self.required_peers = (
            self.settings.cross_shard and shards > 1,
            frozenset(),
        )
        self._tickets.clear()

    def come_into(self, round_id: int) -> None:
        """Note that this peer begins ``round_id`` with an adopted state."""
        self._came_into = round_id

    def require_updates_of(self, peers: frozenset[PeerId]) -> None:
        """Set the peers whose updates the shards need."""
        self.required_peers = peers

    def quorum(self) -> int:
        """Return how many answers a round needs: a majority of the roster without peers that have
        left; 1 with fewer than three peers, or with ``quorum = "available"`` (``_majority``).

        If the round changes no membership, it also needs as many as the rule does. Otherwise, with
        too few peers for the rule, empty rounds would follow each other at once and use up the
        training before a peer is back.
        """
        quorum = self._majority()
        absent = self.departures.count_left(self.roster.peers, self.round_id)
        if absent or any(
            peer not in self.roster and not self.skip_reason(peer) for peer in self.joining
        ):
            return quorum
        return max(
            quorum, needed_by_rule(self.settings, len(self.proven.intersection(self.roster)))
        )

    def _majority(self) -> int:
        """Return the majority of the roster without peers that left; fewer with ``on_minority =
        "continue"``, or if newcomers replace peers that have ended."""
        quorum = quorum_of(
            self.settings,
            len(self.roster) - self.departures.count_left(self.roster.peers, self.round_id),
        )
        if self.settings.rounds.on_minority == "continue":
            left = sum([peer == self.local or not self.is_gone(peer) for peer in self.roster])
            quorum = min(quorum, quorum_of(self.settings, left))
        return min(quorum, self._quorum_without_ended(quorum))

    def _quorum_without_ended(self, quorum: int) -> int:
        """Return the quorum if members have ended for good: one answer from each other member, if
        all of these can be reached and are enough together with the newcomers; else ``quorum``.

        Two sides of a partition cannot both close an attempt, because all living members must
        answer. So this peer learns each result that a living member has recorded.
        """
        left = [peer for peer in self.roster if not self.view.has_ended(peer)]
        if len(left) >= quorum or any(
            peer != self.local and self.skip_reason(peer) for peer in left
        ):
            return quorum
        newcomers = sum(
            [peer not in self.roster and not self.skip_reason(peer) for peer in self.joining]
        )
        return max(1, len(left)) if len(left) + newcomers >= quorum else quorum

    def peers_with_rejected_result(self, shard: ShardRound) -> list[PeerId]:
        """Return the reachable roster members that sent a result which this peer rejected, and no
        update: they have committed, so they send none."""
        return [
            p
            for p in sorted(shard.rejected_from)
            if p in self.roster and p not in shard.served.answers and not self.skip_reason(p)
        ]

    def _suffices(self, shard: ShardRound) -> bool:
        """Return whether the answers suffice to close the round.

        Either a quorum has answered, or the answers together with ``peers_with_rejected_result``
        are a majority and no other peer can answer any more. Otherwise the round would never end.
        If the rule cannot aggregate so few, the round has no result.
        """
        served = shard.served
        if len(served.answers) >= self.quorum():
            return True
        holders = self.peers_with_rejected_result(shard)
        if not holders or len(served.answers) + len(holders) < self._majority():
            return False
        # A skipped peer that is not known to be dead may still answer. After one pass over the
        # order it has had the time to.
        away = [
            peer
            for peer in self.roster
            if peer not in served.answers and peer not in holders and not self.is_gone(peer)
        ]
        return not away or shard.attempt >= len(shard.order)

    def chosen(self, shard: ShardRound) -> Collection[PeerId] | None:
        """Return the peers whose answers make the round. In a pipeline: peers that together have
        each micro-batch once; None until there are such, and the round waits."""
        served = shard.served
        pipeline, few = self.settings.pipeline, self.settings.callers_too_few(len(self.roster))
        if pipeline is None or served.callers > few:
            return served.answers.keys()
        sets = {
            peer: update.micro_batches
            for peer, (update, _) in served.answers.items()
            if peer not in self.locked  # it had nothing to compute
        }
        return cover(sets, pipeline.micro_batches)

    def expected(self) -> list[PeerId]:
        """Return the peers whose updates this round can still bring."""
        return [
            p
            for p in self.roster
            if p not in self.locked and (p == self.local or not self.skip_reason(p))
        ]

    def pulse(self, shard: ShardRound, now: float) -> list[Effect]:
        """Set the next pulse if this peer serves the present attempt."""
        if shard.commit is not None or shard.server_of(shard.attempt) != self.local:
            return []
        timer = self.timers.set(
            now + PULSE_S, RoundTimer("pulse", self.round_id, shard.index, shard.attempt)
        )
        before, shard.pulse = shard.pulse, timer.token
        return [*self.timers.cancel(before), timer]

    def start_timeout(
        self, shard: ShardRound, now: float, collective: bool = False
    ) -> list[Effect]:
        """Start the timeout of the present server. For a ``collective`` operation it is the longest
        one."""
        patience = shard.patience
        if patience.attempt != shard.attempt:
            # The time that claims added for the last server was in vain, unless it is skipped now.
            if patience.attempt >= 0 and self.skip_reason(shard.server_of(patience.attempt)):
                patience.transfers.clear()
                patience.compiles.clear()
            self._spend(self.transfer_tracker, patience.transfers, now)
            self._spend(self.compile_tracker, patience.compiles, now)
            patience.attempt, patience.since = shard.attempt, now
        where = (self.round_id, shard.index, shard.attempt)
        time_s = self.deadline.cap_s if collective else self.deadline.round_timeout_s()
        timer = self.timers.set(
            now + time_s * self.timeout_factor(shard), RoundTimer("give_up", *where)
        )
        before, shard.give_up = shard.give_up, timer.token
        return [*self.timers.cancel(before), timer]

    def timeout_factor(self, shard: ShardRound) -> int:
        """Return the factor of the server's timeout where payloads take time: it doubles with each
        timeout, or each pass over the order, at most ``BACK_OFF_MAX`` times."""
        if not self.transfer_tracker.takes_time:
            return 1
        turns = max(shard.timeouts, (shard.attempt - shard.claims.skipped) // len(shard.order))
        return int(2 ** min(turns, BACK_OFF_MAX))

    def _patience_ends_at(self, shard: ShardRound, now: float) -> float:
        """Return when the patience with the present server ends, however many bytes arrive."""
        return shard.patience.since + self.transfer_tracker.most_s(now) * self.timeout_factor(shard)

    def is_transferring(self, shard: ShardRound, now: float) -> bool:
        """Return whether a peer of this round reports that it compiles or, until the patience ends,
        that it receives payloads. Then a late result is not the server's fault."""
        awaited = [p for p in self.roster if not self.lateness.is_missed(p)]
        if self._believe_busy_reports(self.compile_tracker, awaited, shard.patience.compiles, now):
            return True
        if now > self._patience_ends_at(shard, now):
            return False
        return self._believe_busy_reports(
            self.transfer_tracker, awaited, shard.patience.transfers, now
        )

    def _believe_busy_reports(
        self,
        tracker: TransferTracker | CompileTracker,
        peers: Iterable[PeerId],
        since: dict[PeerId, float],
        now: float,
    ) -> bool:
        """Return whether one of ``peers`` has reported to ``tracker`` that it is busy, and is
        believed.

        More than max(f, 1) busy peers, or this peer, are always believed; another one only while
        its credit lasts: the time that may be spent waiting for it in vain. ``since``: start of the
        wait for each believed peer; updated.
        """
        busy = [p for p in peers if tracker.is_at_work(p, now)]
        if self.local in busy or len(busy) > max(self.settings.f, 1):
            since.clear()
            return True
        most_s = tracker.most_s(now)
        trusted = [p for p in busy if tracker.credit.is_left(p, since.get(p, now), now, most_s)]
        for peer in trusted:
            since.setdefault(peer, now)
        return bool(trusted)

    def _spend(
        self,
        tracker: TransferTracker | CompileTracker,
        since: dict[PeerId, float],
        now: float,
        came: Collection[PeerId] = (),
    ) -> None:
        """Charge the credit of each peer in ``since`` that is not among ``came``: waiting for it
        was in vain."""
        for peer, at in since.items():
            if peer not in came:
                tracker.credit.spend(peer, at, now)
        since.clear()

    def more_time(self, shard: ShardRound, now: float) -> list[Effect]:
        """Return a further timer if the timeout of the present server is over and a result is on
        its way, or a peer reports that it compiles or receives."""
        if not self.is_under_way(shard, now) and not self.is_transferring(shard, now):
            return []
        timer = self.timers.set(
            now + LOOK_EVERY_S, RoundTimer("give_up", self.round_id, shard.index, shard.attempt)
        )
        shard.give_up = timer.token
        return [timer]

    def is_under_way(self, shard: ShardRound, now: float) -> bool:
        """Whether a commit of this shard is being received and will arrive in time."""
        until = self._patience_ends_at(shard, now) + self.deadline.cap_s
        return self.transfer_tracker.brings_result(self.round_id, shard.index, until, now)

    def serve(self, shard: ShardRound, attempt: int, now: float) -> list[Effect]:
        """Start to serve ``attempt``. For a later attempt, schedule a request: a peer may hold a
        commit of an earlier one."""
        former = shard.served
        effects: list[Effect] = [
            cancelled
            for token in (former.grace, former.request_timer, former.measurements_overdue)
            for cancelled in self.timers.cancel(token)
        ]
        served = shard.serve(attempt)
        if self._requests_in(attempt):
            timer = self.timer("request", shard, now + self.settings.rounds.query_after_s)
            served.request_timer = timer.token
            effects.append(timer)
        return effects

    def _requests_in(self, attempt: int) -> bool:
        """Whether a peer may hold an unknown commit of the shard: of an earlier attempt, or of a
        former incarnation of this peer."""
        return attempt > 0 or self._came_into == self.round_id

    def accept_update(
        self, shard: ShardRound, sender: PeerId, update: Update, payload: Payload | None, now: float
    ) -> list[Effect]:
        """Store an update of the served attempt, and close if that completes it."""
        served = shard.served
        if update.attempt != served.attempt or served.ticket is not None:
            return []
        if served.withdrawn.get(sender) == update.attempt:  # its withdrawal came first
            return []
        if not served.answers:
            served.first_at = now
        served.answers[sender] = (update, payload)
        if update.replica:
            shard.replicas[sender] = update.replica
        if sender != self.local:
            self.lateness.came(sender, update, served.first_at, now)
        return self.maybe_close(shard, now)

    def request_missing(self, shard: ShardRound, attempt: int) -> list[Effect]:
        """Request updates that have not come in time."""
        served = shard.served
        served.request_timer = None
        return [] if attempt != served.attempt else self._send_requests(shard, attempt)

    def request_from_newcomers(self, shard: ShardRound) -> list[Effect]:
        """Request updates of peers that were skipped when the others were asked, and are back: they
        do not know of the present attempt."""
        serving = shard.served.attempt
        if serving is None or serving != shard.attempt or shard.served.request_timer is not None:
            return []
        return self._send_requests(shard, serving) if self._requests_in(serving) else []

    def request_again(self, shard: ShardRound, peer: PeerId) -> list[Effect]:
        """Request the update of ``peer`` again: it replied before that it was in no round."""
        shard.served.in_no_round.discard(peer)
        shard.served.asked.discard(peer)
        return self.request_from_newcomers(shard)

    def _send_requests(self, shard: ShardRound, attempt: int) -> list[Effect]:
        served = shard.served
        if served.ticket is not None or shard.commit is not None:
            return []
        request = UpdateRequest(
            self.settings.lineage, self.round_id, shard.index, attempt, self.parent
        )
        expected = self.expected()
        missing = [
            peer
            for peer in expected
            if peer not in served.answers and peer not in served.asked and peer != self.local
        ]
        served.asked.update(missing)
        return [Send(peer, request) for peer in missing]

    def maybe_close(self, shard: ShardRound, now: float) -> list[Effect]:
        """Run the rule if a quorum has answered and nobody else is waited for."""
        served = shard.served
        if served.attempt != shard.attempt or served.ticket is not None or shard.commit is not None:
            return []
        if not self._suffices(shard) or self.chosen(shard) is None:
            return []
        if self.awaits_commit(now):
            return self._schedule_close(shard, now + LOOK_EVERY_S)
        expected = self.expected()
        missing = [
            peer
            for peer in expected
            if peer not in served.answers and peer not in shard.rejected_from
        ]
        if not missing:
            return self._close(shard, now)
        over_at = served.first_at + self._patience_s(shard, len(expected), missing)
        if now >= over_at and self._are_coming(shard, missing, now):
            over_at = now + LOOK_EVERY_S
        if now >= over_at:
            fields = {"round": self.round_id, "shard": shard.index, "missing": missing}
            late = Report("late", {**fields, "waited_s": round(now - served.first_at, 4)})
            return [late, *self._close(shard, now)]
        return self._schedule_close(shard, over_at)

    def _schedule_close(self, shard: ShardRound, at: float) -> list[Effect]:
        served = shard.served
        if served.grace is not None and served.grace_at <= at:
            return []
        before = self.timers.cancel(served.grace)  # an earlier timer replaces it
        timer = self.timer("grace", shard, at)
        served.grace, served.grace_at = timer.token, at
        return [*before, timer]

    def _are_coming(self, shard: ShardRound, missing: Sequence[PeerId], now: float) -> bool:
        """Whether a missing peer compiles, sends an update that will be in time, or still receives
        payloads: its update may wait behind another payload, or behind payloads to other peers."""
        transfer_tracker = self.transfer_tracker
        until = shard.served.first_at + transfer_tracker.most_s(now)
        awaited = [peer for peer in missing if not self.lateness.is_missed(peer)]
        if self._believe_busy_reports(self.compile_tracker, awaited, shard.update_compiles, now):
            return True
        if now >= until:
            return False
        if any(transfer_tracker.is_sending(peer, until, now) for peer in awaited):
            return True
        if self._believe_busy_reports(transfer_tracker, awaited, shard.update_transfers, now):
            return True
        links_are_full = now < shard.served.first_at + transfer_tracker.payload_s(now)
        return links_are_full and self._believe_busy_reports(
            transfer_tracker, self.roster, shard.update_transfers, now
        )

    def _patience_s(self, shard: ShardRound, expected: int, missing: Sequence[PeerId]) -> float:
        """Return how long after the first update the last one may come. It is longer while the rule
        has too few, and longest for a collective operation: the script before it, such as an
        evaluation, takes each peer a different time."""
        served = shard.served
        if served.callers > self.settings.callers_too_few(len(self.roster)):
            return CLOSE_BEFORE_GIVING_UP * self.deadline.cap_s
        timeout_s = CLOSE_BEFORE_GIVING_UP * self.deadline.round_timeout_s()
        usable = sum(1 for update, _ in served.answers.values() if update.samples)
        enough = (
            usable >= min(self.settings.updates_min, expected)
            and self.required_peers <= served.answers.keys()
        )
        return min(self.lateness.patience_s(missing), timeout_s) if enough else timeout_s

    def _close(self, shard: ShardRound, now: float) -> list[Effect]:
        served = shard.served
        self._spend(self.transfer_tracker, shard.update_transfers, now, came=served.answers)
        self._spend(self.compile_tracker, shard.update_compiles, now, came=served.answers)
        usable = self._of_one_kind(shard)
        left_out = usable - self.without_quarantined(usable, self.f_of(shard))
        is_due = self.round_id % self.settings.trust.measured_every == 0
        measured = left_out - self.proven if is_due else NOBODY
        if (chosen := self.chosen(shard)) is not None:
            left_out |= usable.difference(chosen)
        left_out |= frozenset(served.usable()) - usable
        few = self.settings.callers_too_few(len(self.roster))
        served.close(left_out, measured, few)
        effects: list[Effect] = []
        of = len(self.roster) - self.departures.count_left(self.roster.peers, self.round_id)
        if shard.index == 0 and len(served.answers) + len(
            self.peers_with_rejected_result(shard)
        ) < quorum_of(self.settings, of):
            alone = {
                "alive": sorted(served.answers),
                "of": len(self.roster),
                "round": self.round_id,
            }
            effects.append(Report("minority_continues", alone))
        if not self.cross_shard:
            return effects + self.ask_rule(shard, served.rows, outside=served.outside)
        served.cross_shard_progress = CrossShardProgress()
        rows = sorted((*served.rows, *served.outside), key=lambda row: row.peer)
        served.rows = tuple(rows)
        return effects + self.ask_rule(shard, served.rows, step="measure", outside=served.outside)

    def _of_one_kind(self, shard: ShardRound) -> frozenset[PeerId]:
        """Choose the kind of step of the shard's round, and return the peers with a usable update
        of that kind.

        It is the kind of most usable updates. If these are too few for the rule, it is the kind of
        most answers: a Byzantine peer that alone has samples must not choose it.
        """
        served = shard.served
        usable = frozenset(served.usable())
        kinds = {update.kind for update, _ in served.answers.values()}
        if len(kinds) < 2:
            served.kind = next(iter(kinds), 0)
            return usable
        served.kind = served.find_kind(usable - self.locked or usable or served.answers)
        same = frozenset([p for p in usable if served.answers[p][0].kind == served.kind])
        if len(same) < self.settings.updates_needed(self.f_of(shard)):
            served.kind = served.find_kind(served.answers)
            same = frozenset([p for p in usable if served.answers[p][0].kind == served.kind])
        return same

    def without_quarantined(self, usable: frozenset[PeerId], f: int) -> frozenset[PeerId]:
        """Return the peers whose updates go into the rule. If the rule could not tolerate f without
        the suspected peers, only the proven ones are left out."""
        left = usable - self.locked
        return left if len(left) >= self.settings.updates_needed(f) else usable - self.proven

    def ask_rule(self, shard: ShardRound, rows: tuple[Row, ...], **step: Any) -> list[Effect]:
        """Run the rule on ``rows``. ``step`` has further fields of ``Aggregate``, for one step of
        the rule."""
        served = shard.served
        ticket = self._next_ticket
        self._next_ticket += 1
        self._tickets[ticket] = (shard, served.attempt)
        served.ticket = ticket
        own = next((i for i, row in enumerate(rows) if row.peer == self.local), None)
        f = self.f_of(shard)
        log = self.log
        last = log.previous.get(served.kind) if log is not None else None
        if log is not None and last is not None:
            step["previous"] = last[shard.index]
            step["usual"] = log.usual(served.kind, shard.index)
        reports: list[Effect] = []
        if rows and self.settings.rounds.quorum == "available":
            n, f_wanted = len(step.get("peers", rows)), f
            f = self.settings.tolerable(f_wanted, n)
            if (short := f_wanted - f) != self._short:
                reports.append(
                    Report(
                        "reduced_tolerance",
                        {"round": self.round_id, "f": f, "wanted": f_wanted, "updates": n},
                    )
                )
                self._short = short
        return [
            *reports,
            Aggregate(ticket, self.round_id, shard.index, rows, f, own, **step),
        ]

    def f_of(self, shard: ShardRound) -> int:
        """Return how many Byzantine peers the rule has to tolerate: f without the proven ones. A
        peer with a non-finite update counts as one of f only if the other updates are too few for
        more: an honest model may overflow."""
        served = shard.served
        f = max(0, self.settings.f - len(self.proven.intersection(self.roster)))
        if not served.faulty:
            return f
        enough_for = self.settings.tolerable(f, len(served.usable()))
        return max(f - len(set(served.faulty) - self.proven), enough_for, 0)

    def record_measurements(self, event: Aggregated) -> ShardRound | None:
        """Store the measurements that ``event`` brings.

        Returns: Their shard; None if it brings something else, or is late.
        """
        shard, _ = self._tickets.get(event.ticket, (None, 0))
        progress = (
            shard.served.cross_shard_progress
            if shard is not None and shard.served.ticket == event.ticket
            else None
        )
        if progress is None or progress.step != "measure":
            return None
        del self._tickets[event.ticket]
        progress.step, progress.statistics = "measured", event.statistics
        progress.why = "" if event.statistics else event.reason
        return shard

    def finish(
        self,
        event: Aggregated,
        roster: tuple[PeerId, ...],
        accusations: tuple[Accusation, ...] = (),
        audits: tuple[AuditVote, ...] = (),
    ) -> tuple[ShardRound, Commit] | None:
        """Return the commit of the rule's result; None if this peer has moved to a later attempt or
        recorded a commit."""
        shard, attempt = self._tickets.pop(event.ticket, (None, 0))
        if (
            shard is None
            or shard.served.ticket != event.ticket
            or shard.commit is not None
            or attempt < shard.attempt
        ):
            return None
        commit = self._commit_of(shard, event, roster)
        if not accusations and not audits:
            return shard, commit
        return shard, replace(commit, accusations=accusations, audits=audits)

    def _commit_of(
        self, shard: ShardRound, result: Aggregated, roster: tuple[PeerId, ...]
    ) -> Commit:
        """Build the commit of a shard from the result of the rule."""
        served = shard.served
        progress = served.cross_shard_progress or CrossShardProgress(
            rows=served.rows, outside=served.outside
        )
        contributors: tuple[Contribution, ...] = ()
        if result.payload is not None and progress.step == "combine":
            contributors = progress.verdict
        elif result.payload is not None:
            facts = zip(progress.rows, result.weights, result.outlyingness, strict=True)
            updates = {peer: update for peer, (update, _) in served.answers.items()}
            contributors = tuple(
                Contribution(
                    r.peer,
                    r.samples,
                    weight,
                    far,
                    updates[r.peer].took_us,
                    updates[r.peer].micro_batches,
                    updates[r.peer].pass_us,
                )
                for r, weight, far in facts
            )
        decides = result.payload is not None and progress.step == "decide"
        replica, diverged = (
            compare(shard.replicas, len(self.roster), self.settings.f)
            if shard.replicas
            else (b"", ())
        )
        return Commit(
            lineage=self.settings.lineage,
            round_id=self.round_id,
            shard=shard.index,
            attempt=served.attempt,
            made_at=served.attempt,
            server=self.local,
            parent=self.parent,
            digest=result.payload.digest if result.payload is not None else b"",
            contributors=contributors,
            rejected=_rejected(shard, progress.outside, result),
            roster=roster,
            loss=served.mean_loss(progress.rows),
            reason=(progress.why or result.reason)[:REASON_CHARACTERS]
            if result.payload is None
            else "",
            decision=result.decision if decides else (),
            measured=progress.measured if decides else (),
            rates=agree(served.answers[row.peer][0].rates for row in progress.rows),
            collected=served.collected,
            replica=replica,
            diverged=diverged,
            kind=served.kind,
            length=result.length if result.payload is not None else 0.0,
        )

    def timer(
        self,
        what: Literal["grace", "request", "measurements_overdue"],
        shard: ShardRound,
        at: float,
    ) -> SetTimer:
        return self.timers.set(
            at, RoundTimer(what, self.round_id, shard.index, shard.served.attempt)
        )


def _rejected(
    shard: ShardRound, outside: Sequence[Row], result: Aggregated
) -> tuple[Rejection, ...]:
    """Return what a commit reports about the peers whose samples it does not use, ascending."""
    found: list[Rejection] = []
    for peer, (update, payload) in shard.served.answers.items():
        if payload is not None and not payload.finite:
            found.append(Rejection(peer, "non_finite"))
        elif payload is None and update.skipped:
            found.append(Rejection(peer, "skipped"))
    if result.payload is not None:
        # without outlyingness where the rule has none
        measured = zip(outside, result.outside, strict=False)
        found += [Rejection(row.peer, "quarantined", far) for row, far in measured]
    return tuple(sorted(found, key=lambda rejection: rejection.peer))
