"""Server side of a rolling round: collect updates, close the attempt when enough have arrived, run
the aggregation rule, and build the commit. Closing an attempt fixes the updates that the rule
receives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Literal

from gossip.core.events import Aggregate, Aggregated, Effect, Payload, Report, Row, Send, SetTimer
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
from gossip.core.settings import CHECK_INTERVAL_S, REASON_CHARACTERS, SERVER_PULSE_S
from gossip.core.timers import Timers
from gossip.topologies import Roster

from .cover import cover
from .patience import Patience
from .quorum import Quorum, quorum_of
from .shard import NOBODY, CrossShardProgress, RoundTimer, ShardRound


class Server:
    """Collection, aggregation and commit of the shards that this peer serves.

    Args:
        quorum: Condition for closing an attempt.
        patience: Rules for how long to wait for further updates after the quorum.
        awaits_commit: Function that returns whether another peer has a commit of this round that
            may still arrive.
    """

    def __init__(
        self,
        timers: Timers[Any],
        quorum: Quorum,
        patience: Patience,
        awaits_commit: Callable[[float], bool] = lambda now: False,
    ) -> None:
        self.local, self.settings, self.timers = quorum.local, quorum.settings, timers
        self.present, self.quorum, self.patience = quorum.present, quorum, patience
        self.awaits_commit = awaits_commit
        self._came_into = -1  # last round that this peer has begun with an adopted state
        self.log: CommitLog | None = None
        self.cross_shard = False  # whether the shards of this round decide together
        self._next_ticket = 1
        self._short = 0  # f minus the number of Byzantine peers that the last rule call tolerated

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
            standing: Peers in quarantine, and the subset of proven Byzantine peers. No server waits
                for the updates of these peers, and no rule uses them.
            log: Commits of earlier rounds, for rules that use the last result.
            shards: Number of shards.
        """
        present = self.present
        present.round_id, present.roster, present.parent = round_id, roster, parent
        present.locked, present.proven = standing
        self.log = log
        self.cross_shard = self.settings.cross_shard and shards > 1

    def come_into(self, round_id: int) -> None:
        """Record that this peer begins ``round_id`` with an adopted state."""
        self._came_into = round_id

    def chosen(self, shard: ShardRound) -> Collection[PeerId] | None:
        """Return the peers with the updates that the round uses. In a pipeline, the updates of
        these peers together contain each micro-batch exactly once. If there is no such set of peers
        yet, return None, and the round waits."""
        served = shard.served
        pipeline, few = (
            self.settings.pipeline,
            self.settings.callers_too_few(len(self.present.roster)),
        )
        if pipeline is None or served.callers > few:
            return served.answers.keys()
        sets = {
            peer: update.micro_batches
            for peer, (update, _) in served.answers.items()
            if peer not in self.present.locked  # a quarantined peer is assigned no micro-batch
        }
        return cover(sets, pipeline.micro_batches)

    def pulse(self, shard: ShardRound, now: float) -> list[Effect]:
        """Set the next pulse timer, which detects a pause of this process, if this peer serves the
        present attempt."""
        if shard.commit is not None or shard.server_of(shard.attempt) != self.local:
            return []
        timer = self.timers.set(
            now + SERVER_PULSE_S,
            RoundTimer("pulse", self.present.round_id, shard.index, shard.attempt),
        )
        before, shard.pulse = shard.pulse, timer.token
        return [*self.timers.cancel(before), timer]

    def serve(self, shard: ShardRound, attempt: int, now: float) -> list[Effect]:
        """Start to serve ``attempt``. If this is not the first attempt, also schedule requests for
        missing updates, because a peer may have a commit of an earlier attempt and send no
        update."""
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
        """Whether this peer may lack a commit of the shard that another peer has. An earlier
        attempt, or a former incarnation of this peer, may have made this commit."""
        return attempt > 0 or self._came_into == self.present.round_id

    def accept_update(
        self, shard: ShardRound, sender: PeerId, update: Update, payload: Payload | None, now: float
    ) -> list[Effect]:
        """Store an update for the served attempt. If no further update is needed, close the
        attempt."""
        served = shard.served
        if update.attempt != served.attempt or served.ticket is not None:
            return []
        # the withdrawal arrived before the update
        if served.withdrawn.get(sender) == update.attempt:
            return []
        if not served.answers:
            served.first_at = now
        served.answers[sender] = (update, payload)
        if update.replica:
            shard.replicas[sender] = update.replica
        if sender != self.local:
            self.patience.lateness.came(sender, update, served.first_at, now)
        return self.maybe_close(shard, now)

    def request_missing(self, shard: ShardRound, attempt: int) -> list[Effect]:
        """Request the updates that have not arrived in time."""
        served = shard.served
        served.request_timer = None
        return [] if attempt != served.attempt else self._send_requests(shard, attempt)

    def request_from_newcomers(self, shard: ShardRound) -> list[Effect]:
        """Request the updates of peers that were skipped at the time of the last requests and have
        returned. These peers have received no request in the present attempt."""
        serving = shard.served.attempt
        if serving is None or serving != shard.attempt or shard.served.request_timer is not None:
            return []
        return self._send_requests(shard, serving) if self._requests_in(serving) else []

    def request_again(self, shard: ShardRound, peer: PeerId) -> list[Effect]:
        """Request the update of ``peer`` again. It has replied to the first request that it took
        part in no round."""
        shard.served.in_no_round.discard(peer)
        shard.served.asked.discard(peer)
        return self.request_from_newcomers(shard)

    def _send_requests(self, shard: ShardRound, attempt: int) -> list[Effect]:
        served = shard.served
        if served.ticket is not None or shard.commit is not None:
            return []
        request = UpdateRequest(
            self.settings.lineage, self.present.round_id, shard.index, attempt, self.present.parent
        )
        expected = self.quorum.expected()
        missing = [
            peer
            for peer in expected
            if peer not in served.answers and peer not in served.asked and peer != self.local
        ]
        served.asked.update(missing)
        return [Send(peer, request) for peer in missing]

    def maybe_close(self, shard: ShardRound, now: float) -> list[Effect]:
        """Run the rule if a quorum has replied and the server waits for no further peer."""
        served = shard.served
        if served.attempt != shard.attempt or served.ticket is not None or shard.commit is not None:
            return []
        if not self.quorum.suffices(shard) or self.chosen(shard) is None:
            return []
        if self.awaits_commit(now):
            return self._schedule_close(shard, now + CHECK_INTERVAL_S)
        expected = self.quorum.expected()
        missing = [
            peer
            for peer in expected
            if peer not in served.answers and peer not in shard.rejected_from
        ]
        if not missing:
            return self._close(shard, now)
        over_at = served.first_at + self.patience.updates_s(shard, len(expected), missing)
        if now >= over_at and self.patience.are_coming(shard, missing, now):
            over_at = now + CHECK_INTERVAL_S
        if now >= over_at:
            fields = {"round": self.present.round_id, "shard": shard.index, "missing": missing}
            late = Report("late", {**fields, "waited_s": round(now - served.first_at, 4)})
            return [late, *self._close(shard, now)]
        return self._schedule_close(shard, over_at)

    def _schedule_close(self, shard: ShardRound, at: float) -> list[Effect]:
        served = shard.served
        if served.grace is not None and served.grace_at <= at:
            return []
        before = self.timers.cancel(served.grace)  # the new timer replaces the previous timer
        timer = self.timer("grace", shard, at)
        served.grace, served.grace_at = timer.token, at
        return [*before, timer]

    def _close(self, shard: ShardRound, now: float) -> list[Effect]:
        served = shard.served
        self.patience.end_wait(shard, now)
        usable = self._of_one_kind(shard)
        left_out = usable - self.without_quarantined(usable, self.f_of(shard))
        is_due = self.present.round_id % self.settings.trust.measured_every == 0
        measured = left_out - self.present.proven if is_due else NOBODY
        if (chosen := self.chosen(shard)) is not None:
            left_out |= usable.difference(chosen)
        left_out |= frozenset(served.usable()) - usable
        few = self.settings.callers_too_few(len(self.present.roster))
        served.close(left_out, measured, few)
        effects: list[Effect] = []
        if shard.index == 0 and len(served.answers) + len(
            self.quorum.peers_with_rejected_result(shard)
        ) < quorum_of(self.settings, self.quorum.members()):
            alone = {
                "alive": sorted(served.answers),
                "of": len(self.present.roster),
                "round": self.present.round_id,
            }
            effects.append(Report("minority_continues", alone))
        if not self.cross_shard:
            return effects + self.ask_rule(shard, served.rows, outside=served.outside)
        served.cross_shard_progress = CrossShardProgress()
        rows = sorted((*served.rows, *served.outside), key=lambda row: row.peer)
        served.rows = tuple(rows)
        return effects + self.ask_rule(shard, served.rows, step="measure", outside=served.outside)

    def _of_one_kind(self, shard: ShardRound) -> frozenset[PeerId]:
        """Choose the kind of step that the shard makes in this round. Return the peers with a
        usable update of this kind.

        The most common kind of the usable updates is chosen. If fewer updates have this kind than
        the rule needs, the most common kind of all received updates is chosen. So a Byzantine peer
        that alone has samples cannot choose the kind.
        """
        served = shard.served
        usable = frozenset(served.usable())
        kinds = {update.kind for update, _ in served.answers.values()}
        if len(kinds) < 2:
            served.kind = next(iter(kinds), 0)
            return usable
        served.kind = served.find_kind(usable - self.present.locked or usable or served.answers)
        same = frozenset([p for p in usable if served.answers[p][0].kind == served.kind])
        if len(same) < self.settings.updates_needed(self.f_of(shard)):
            served.kind = served.find_kind(served.answers)
            same = frozenset([p for p in usable if served.answers[p][0].kind == served.kind])
        return same

    def without_quarantined(self, usable: frozenset[PeerId], f: int) -> frozenset[PeerId]:
        """Return the peers with the updates for the rule. Quarantined peers are excluded. If the
        rule could not tolerate f Byzantine peers without them, only the proven Byzantine peers are
        excluded."""
        left, enough = usable - self.present.locked, self.settings.updates_needed(f)
        return left if len(left) >= enough else usable - self.present.proven

    def ask_rule(self, shard: ShardRound, rows: tuple[Row, ...], **step: Any) -> list[Effect]:
        """Run the rule on ``rows``. If the rule runs in steps, ``step`` contains further fields of
        ``Aggregate``."""
        served = shard.served
        ticket = self._next_ticket
        self._next_ticket += 1
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
                        {"round": self.present.round_id, "f": f, "wanted": f_wanted, "updates": n},
                    )
                )
                self._short = short
        return [
            *reports,
            Aggregate(ticket, self.present.round_id, shard.index, rows, f, own, **step),
        ]

    def f_of(self, shard: ShardRound) -> int:
        """Return the number of Byzantine peers that the rule has to tolerate: f without the proven
        Byzantine peers. A peer with a non-finite update may be honest, because an honest model may
        overflow. So such peers reduce the number only if there are too few finite updates to
        tolerate more."""
        served = shard.served
        f = max(0, self.settings.f - len(self.present.proven.intersection(self.present.roster)))
        if not served.faulty:
            return f
        enough_for = self.settings.tolerable(f, len(served.usable()))
        return max(f - len(set(served.faulty) - self.present.proven), enough_for, 0)

    def record_measurements(self, event: Aggregated) -> ShardRound | None:
        """Store the measurements in ``event``.

        Returns: The measured shard; None if ``event`` contains no measurements, or is late.
        """
        shard = self._shard_of(event)
        progress = None if shard is None else shard.served.cross_shard_progress
        if progress is None or progress.step != "measure":
            return None
        progress.step, progress.statistics = "measured", event.statistics
        progress.why = "" if event.statistics else event.reason
        return shard

    def _shard_of(self, event: Aggregated) -> ShardRound | None:
        """Return the shard for which the rule has run; None if its attempt has ended."""
        return next((s for s in self.present.shards if s.served.ticket == event.ticket), None)

    def finish(
        self,
        event: Aggregated,
        roster: tuple[PeerId, ...],
        accusations: tuple[Accusation, ...] = (),
        audits: tuple[AuditVote, ...] = (),
    ) -> tuple[ShardRound, Commit] | None:
        """Return the shard and the commit of the rule's result; None if this peer has moved to a
        later attempt, or has recorded a commit of the shard."""
        shard = self._shard_of(event)
        if shard is None or shard.commit is not None or shard.served.attempt < shard.attempt:
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
            compare(shard.replicas, len(self.present.roster), self.settings.f)
            if shard.replicas
            else (b"", ())
        )
        return Commit(
            lineage=self.settings.lineage,
            round_id=self.present.round_id,
            shard=shard.index,
            attempt=served.attempt,
            made_at=served.attempt,
            server=self.local,
            parent=self.present.parent,
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
            at, RoundTimer(what, self.present.round_id, shard.index, shard.served.attempt)
        )


def _rejected(
    shard: ShardRound, outside: Sequence[Row], result: Aggregated
) -> tuple[Rejection, ...]:
    """Return the rejections of a commit, ascending by peer. A commit does not use the samples of a
    rejected peer."""
    found: list[Rejection] = []
    for peer, (update, payload) in shard.served.answers.items():
        if payload is not None and not payload.finite:
            found.append(Rejection(peer, "non_finite"))
        elif payload is None and update.skipped:
            found.append(Rejection(peer, "skipped"))
    if result.payload is not None:
        # ``result.outside`` is empty if the rule has no outlyingness
        measured = zip(outside, result.outside, strict=False)
        found += [Rejection(row.peer, "quarantined", far) for row, far in measured]
    return tuple(sorted(found, key=lambda rejection: rejection.peer))
