"""The server's side of a rolling round: collect updates, know when enough have come, run the rule,
make the commit."""

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
"""How often is looked whether it still does."""

BACK_OFF_MAX = 3
"""Doublings of the time that a server has where payloads take time: one each time that this peer
has given up on one, or that all of them had their turn."""

PULSE_S = 0.1
"""Whoever serves wants to find out that it was stopped before the others' heartbeats do: it has a
timer that is so near."""


NOBODY: frozenset[PeerId] = frozenset()


@record
class RoundTimer:
    """``give_up`` on the server of an attempt; the ``grace`` of a server is over; ``ask`` those it
    has not heard of; ``hold`` what was spread; ``pulse``: see ``PULSE_S``; what others were to
    measure is a ``lack``; one that stood still serves ``again``."""

    what: Literal["give_up", "grace", "ask", "hold", "pulse", "lack", "again"]
    round_id: int
    shard: int
    attempt: int


class Server:
    """Work of a peer for the shards whose turn it is to serve.

    Args:
        skip_reason: "" for a peer that can be expected.
        joining: Who is ready to be in the next roster, as it changes.
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
        self._came_into = -1  # the last round that this peer has come into with a state
        self.roster = Roster(())
        self.locked: frozenset[PeerId] = frozenset()
        self.proven: frozenset[PeerId] = frozenset()
        self.parent = b""
        self.log: CommitLog | None = None
        self.cross_shard = False  # the shards of this round decide together
        # without whose updates no shard helps any more
        self.wanted: frozenset[PeerId] = frozenset()
        self._tickets: dict[int, tuple[ShardRound, int]] = {}
        self._next_ticket = 1
        self._short = 0  # of f, in the last round served: so many liars fewer are tolerated

    def begin(
        self,
        round_id: int,
        roster: Roster,
        standing: tuple[frozenset[PeerId], frozenset[PeerId]],
        parent: bytes,
        log: CommitLog | None = None,
        shards: int = 1,
    ) -> None:
        """A round begins.

        Args:
            standing: Those in quarantine, whose updates nobody waits for, and no rule sees; and
                those of them who are proven to lie.
            log: Of the rounds before: rules may ask for what was applied last.
            shards: How many there are.
        """
        self.round_id, self.roster, self.parent = round_id, roster, parent
        self.log = log
        self.locked, self.proven = standing
        self.cross_shard, self.wanted = self.settings.cross_shard and shards > 1, frozenset()
        self._tickets.clear()

    def come_into(self, round_id: int) -> None:
        """This peer begins that round with a state that it was given."""
        self._came_into = round_id

    def wait_for(self, peers: frozenset[PeerId]) -> None:
        """Without their updates no shard helps any more."""
        self.wanted = peers

    def quorum(self) -> int:
        """Answers without which a round is not closed, by the size of the last committed roster,
        without those who have left it.

        Nor is one closed of which the rule could make nothing, unless it lets somebody in or out:
        rounds that teach nothing would go by as fast as peers can speak, and the training be over
        before anybody is back.
        """
        quorum = self._majority()
        absent = self.departures.absent(self.roster.peers, self.round_id)
        if absent or any(
            peer not in self.roster and not self.skip_reason(peer) for peer in self.joining
        ):
            return quorum
        return max(
            quorum, needed_by_rule(self.settings, len(self.proven.intersection(self.roster)))
        )

    def _majority(self) -> int:
        """Peers without whom a round is not closed, whatever they answer."""
        quorum = quorum_of(
            self.settings,
            len(self.roster) - self.departures.absent(self.roster.peers, self.round_id),
        )
        if self.settings.rounds.on_minority == "continue":
            left = sum([peer == self.local or not self.is_gone(peer) for peer in self.roster])
            quorum = min(quorum, quorum_of(self.settings, left))
        return min(quorum, self._those_left(quorum))

    def _those_left(self, quorum: int) -> int:
        """Peers without whom a round is not closed, where newcomers stand in for those who
        have ended for good.

        Everybody of the roster who has not ended is among them: so no two sides of a partition can
        both close a round, and what somebody alive knows to be decided is known here.
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

    def keep_to_others(self, shard: ShardRound) -> list[PeerId]:
        """Note a peer that is here and gives no update: it keeps to a result that it has handed
        over, which is refused here."""
        return [
            p
            for p in sorted(shard.spent)
            if p in self.roster and p not in shard.answers and not self.skip_reason(p)
        ]

    def _suffices(self, shard: ShardRound) -> bool:
        """Whether a round may be closed with the answers that have come.

        Who keeps to a refused result is of this side of a partition all the same. So it counts with
        the majority where nobody else can come any more: else the round would stand for ever. When
        the rule makes nothing of so few, the round is lost.
        """
        if len(shard.answers) >= self.quorum():
            return True
        kept = self.keep_to_others(shard)
        if not kept or len(shard.answers) + len(kept) < self._majority():
            return False
        # Who is passed over, and not known to be dead, may come yet.
        # Once round the order it could have.
        away = [
            peer
            for peer in self.roster
            if peer not in shard.answers and peer not in kept and not self.is_gone(peer)
        ]
        return not away or shard.attempt >= len(shard.order)

    def chosen(self, shard: ShardRound) -> Collection[PeerId] | None:
        """Return the peers whose answers make the round. In a pipeline: those that have each
        micro-batch once; None while there are none. Then the round waits until somebody has
        computed what is missing."""
        pipeline, few = self.settings.pipeline, self.settings.callers_too_few(len(self.roster))
        if pipeline is None or shard.callers > few:
            return shard.answers.keys()
        sets = {
            peer: update.micro_batches
            for peer, (update, _) in shard.answers.items()
            if peer not in self.locked  # it was to compute nothing
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
        """To be asked whenever it has fired, and when it becomes this peer's turn."""
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
        """The server of the attempt that we are at has its time from now on. For a ``collective``
        operation it waits longer for the others."""
        if shard.given_to != shard.attempt:
            # The server of the last attempt had more time in vain, unless it is gone meanwhile.
            if shard.given_to >= 0 and self.skip_reason(shard.server_of(shard.given_to)):
                shard.given_on_word.clear()
                shard.given_to_compile.clear()
            self._spend(self.transfer_tracker, shard.given_on_word, now)
            self._spend(self.compile_tracker, shard.given_to_compile, now)
            shard.given_to, shard.given_at = shard.attempt, now
        where = (self.round_id, shard.index, shard.attempt)
        time_s = self.deadline.cap_s if collective else self.deadline.round_timeout_s()
        timer = self.timers.set(now + time_s * self.back_off(shard), RoundTimer("give_up", *where))
        before, shard.give_up = shard.give_up, timer.token
        return [*self.timers.cancel(before), timer]

    def back_off(self, shard: ShardRound) -> int:
        """How many times as long a server has as the first. Who has given up once is too impatient
        for the load that this makes."""
        if not self.transfer_tracker.takes_time:
            return 1
        turns = max(shard.given_up, (shard.attempt - shard.jumped) // len(shard.order))
        return int(2 ** min(turns, BACK_OFF_MAX))

    def _patience_ends_at(self, shard: ShardRound, now: float) -> float:
        """Return when the patience with the server of our attempt ends, however much moves: nothing
        moves for ever."""
        return shard.given_at + self.transfer_tracker.most_s(now) * self.back_off(shard)

    def is_transferring(self, shard: ShardRound, now: float) -> bool:
        """Whether somebody on whom this round depends compiles, or is being sent payloads, as fast
        as can be asked: then it is not for lack of will that a result is not here."""
        awaited = [p for p in self.roster if not self.lateness.is_missed(p)]
        if self._accept_busy_claims(self.compile_tracker, awaited, shard.given_to_compile, now):
            return True
        if now > self._patience_ends_at(shard, now):
            return False
        return self._accept_busy_claims(self.transfer_tracker, awaited, shard.given_on_word, now)

    def _accept_busy_claims(
        self,
        tracker: TransferTracker | CompileTracker,
        peers: Iterable[PeerId],
        since: dict[PeerId, float],
        now: float,
    ) -> bool:
        """Whether any of ``peers`` says that it is busy, as ``tracker`` knows, and has credit.
        ``since`` keeps who, and since when.

        What this peer sees itself, or more say than lie, is no matter of credit.
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
        """It was in vain to wait for those who are not among ``came``."""
        for peer, at in since.items():
            if peer not in came:
                tracker.credit.spend(peer, at, now)
        since.clear()

    def more_time(self, shard: ShardRound, now: float) -> list[Effect]:
        """The time of the server of our attempt is over.
        It gets more as long as something moves."""
        if not self.is_under_way(shard, now) and not self.is_transferring(shard, now):
            return []
        timer = self.timers.set(
            now + LOOK_EVERY_S, RoundTimer("give_up", self.round_id, shard.index, shard.attempt)
        )
        shard.give_up = timer.token
        return [timer]

    def is_under_way(self, shard: ShardRound, now: float) -> bool:
        """Whether a commit of this shard comes here, and will be here in time."""
        until = self._patience_ends_at(shard, now) + self.deadline.cap_s
        return self.transfer_tracker.brings_result(self.round_id, shard.index, until, now)

    def serve(self, shard: ShardRound, attempt: int, now: float) -> list[Effect]:
        """Starts to serve an attempt. For a later one we ask around:
        somebody may hold a commit of an earlier."""
        effects: list[Effect] = [
            cancelled
            for token in (shard.grace, shard.query, shard.lack)
            for cancelled in self.timers.cancel(token)
        ]
        shard.grace = shard.query = shard.lack = None
        shard.serve(attempt)
        if self._asks_in(attempt):
            timer = self.timer("ask", shard, now + self.settings.rounds.query_after_s)
            shard.query = timer.token
            effects.append(timer)
        return effects

    def _asks_in(self, attempt: int) -> bool:
        """Whether somebody may hold a commit of the shard that this peer does not know of: of an
        earlier attempt, or one that a former life of this peer has made."""
        return attempt > 0 or self._came_into == self.round_id

    def accept_update(
        self, shard: ShardRound, sender: PeerId, update: Update, payload: Payload | None, now: float
    ) -> list[Effect]:
        """An update for the attempt that is served here."""
        if update.attempt != shard.serving or shard.ticket is not None:
            return []
        if shard.taken_back.get(sender) == update.attempt:  # that came first, by another lane
            return []
        if not shard.answers:
            shard.first_at = now
        shard.answers[sender] = (update, payload)
        if update.replica:
            shard.replicas[sender] = update.replica
        if sender != self.local:  # the own one is here without having travelled
            self.lateness.came(sender, update, shard.first_at, now)
        return self.maybe_close(shard, now)

    def ask(self, shard: ShardRound, attempt: int) -> list[Effect]:
        """The others' updates have had their time to come by themselves."""
        shard.query = None
        return [] if attempt != shard.serving else self._ask(shard, attempt)

    def ask_newcomers(self, shard: ShardRound) -> list[Effect]:
        """Ask the peers that were skipped when the others were asked for an attempt and are back
        since: they do not know of that attempt."""
        serving = shard.serving
        if serving is None or serving != shard.attempt or shard.query is not None:
            return []
        return self._ask(shard, serving) if self._asks_in(serving) else []

    def ask_again(self, shard: ShardRound, peer: PeerId) -> list[Effect]:
        """It has answered that it had nothing to give. Since then that may have changed."""
        shard.had_nothing.discard(peer)
        shard.asked.discard(peer)
        return self.ask_newcomers(shard)

    def _ask(self, shard: ShardRound, attempt: int) -> list[Effect]:
        if shard.ticket is not None or shard.commit is not None:
            return []
        query = UpdateRequest(
            self.settings.lineage, self.round_id, shard.index, attempt, self.parent
        )
        expected = self.expected()
        missing = [
            peer
            for peer in expected
            if peer not in shard.answers and peer not in shard.asked and peer != self.local
        ]
        shard.asked.update(missing)
        return [Send(peer, query) for peer in missing]

    def maybe_close(self, shard: ShardRound, now: float) -> list[Effect]:
        """Runs the rule when a quorum is there and everybody has answered or has had the grace."""
        if (
            shard.serving is None
            or shard.serving != shard.attempt
            or shard.ticket is not None
            or shard.commit is not None
        ):
            return []
        if not self._suffices(shard) or self.chosen(shard) is None:
            return []
        if self.awaits_commit(now):
            return self._schedule_close(shard, now + LOOK_EVERY_S)
        expected = self.expected()
        missing = [
            peer for peer in expected if peer not in shard.answers and peer not in shard.spent
        ]
        if not missing:
            return self._close(shard, now)
        over_at = shard.first_at + self._patience_s(shard, len(expected), missing)
        if now >= over_at and self._are_coming(shard, missing, now):
            over_at = now + LOOK_EVERY_S
        if now >= over_at:
            fields = {"round": self.round_id, "shard": shard.index, "missing": missing}
            late = Report("late", {**fields, "waited_s": round(now - shard.first_at, 4)})
            return [late, *self._close(shard, now)]
        return self._schedule_close(shard, over_at)

    def _schedule_close(self, shard: ShardRound, at: float) -> list[Effect]:
        if shard.grace is not None and shard.grace_at <= at:
            return []
        before = self.timers.cancel(shard.grace)  # those who are missing now are waited for less
        timer = self.timer("grace", shard, at)
        shard.grace, shard.grace_at = timer.token, at
        return [*before, timer]

    def _are_coming(self, shard: ShardRound, missing: Sequence[PeerId], now: float) -> bool:
        """Whether somebody whom we wait for compiles, or sends, so that its update will be in time,
        or still receives what comes before. The update may wait behind another payload, and for a
        while behind what the links carry to others."""
        transfer_tracker = self.transfer_tracker
        until = shard.first_at + transfer_tracker.most_s(now)
        awaited = [peer for peer in missing if not self.lateness.is_missed(peer)]
        if self._accept_busy_claims(self.compile_tracker, awaited, shard.awaited_to_compile, now):
            return True
        if now >= until:
            return False
        if any(transfer_tracker.is_sending(peer, until, now) for peer in awaited):
            return True
        if self._accept_busy_claims(transfer_tracker, awaited, shard.awaited_on_word, now):
            return True
        links_are_full = now < shard.first_at + transfer_tracker.payload_s(now)
        return links_are_full and self._accept_busy_claims(
            transfer_tracker, self.roster, shard.awaited_on_word, now
        )

    def _patience_s(self, shard: ShardRound, expected: int, missing: Sequence[PeerId]) -> float:
        """How long after the first update the last one may come; longer while the rule has too few
        to work with, and as long as a round may take for a collective operation: what a script does
        before one, as to evaluate, takes each peer another time."""
        if shard.callers > self.settings.callers_too_few(len(self.roster)):
            return CLOSE_BEFORE_GIVING_UP * self.deadline.cap_s
        timeout_s = CLOSE_BEFORE_GIVING_UP * self.deadline.round_timeout_s()
        usable = sum(1 for update, _ in shard.answers.values() if update.samples)
        enough = (
            usable >= min(self.settings.updates_min, expected)
            and self.wanted <= shard.answers.keys()
        )
        return min(self.lateness.patience_s(missing), timeout_s) if enough else timeout_s

    def _close(self, shard: ShardRound, now: float) -> list[Effect]:
        self._spend(self.transfer_tracker, shard.awaited_on_word, now, came=shard.answers)
        self._spend(self.compile_tracker, shard.awaited_to_compile, now, came=shard.answers)
        usable = self._of_one_kind(shard)
        left_out = usable - self.without_quarantined(usable, self.f_of(shard))
        if (chosen := self.chosen(shard)) is not None:
            left_out |= usable.difference(chosen)
        is_due = self.round_id % self.settings.trust.measured_every == 0
        measured = left_out - self.proven if is_due else NOBODY
        left_out |= frozenset(shard.usable()) - usable
        few = self.settings.callers_too_few(len(self.roster))
        shard.close(left_out, measured, few)
        effects: list[Effect] = []
        of = len(self.roster) - self.departures.absent(self.roster.peers, self.round_id)
        if shard.index == 0 and len(shard.answers) + len(self.keep_to_others(shard)) < quorum_of(
            self.settings, of
        ):
            alone = {"alive": sorted(shard.answers), "of": len(self.roster), "round": self.round_id}
            effects.append(Report("minority_continues", alone))
        if not self.cross_shard:
            return effects + self.ask_rule(shard, shard.rows, outside=shard.outside)
        shard.cross_shard_progress = CrossShardProgress()
        rows = sorted((*shard.rows, *shard.outside), key=lambda row: row.peer)
        shard.rows = tuple(rows)
        return effects + self.ask_rule(shard, shard.rows, step="measure", outside=shard.outside)

    def _of_one_kind(self, shard: ShardRound) -> frozenset[PeerId]:
        """Choose the kind of step that a shard's round makes. Returns who has a usable update of
        that kind.

        It is the kind that most usable updates have. Where these are too few for the rule, it is
        the kind of most answers: a liar that is the only one with samples shall not choose it.
        """
        usable = frozenset(shard.usable())
        kinds = {update.kind for update, _ in shard.answers.values()}
        if len(kinds) < 2:
            shard.kind = next(iter(kinds), 0)
            return usable
        shard.kind = shard.find_kind(usable - self.locked or usable or shard.answers)
        same = frozenset([p for p in usable if shard.answers[p][0].kind == shard.kind])
        if len(same) < self.settings.updates_needed(self.f_of(shard)):
            shard.kind = shard.find_kind(shard.answers)
            same = frozenset([p for p in usable if shard.answers[p][0].kind == shard.kind])
        return same

    def without_quarantined(self, usable: frozenset[PeerId], f: int) -> frozenset[PeerId]:
        """Return the peers whose updates go into the rule. Suspicion keeps nobody out where the
        rule could not tolerate f with the others: then those who are only suspected are in."""
        left = usable - self.locked
        return left if len(left) >= self.settings.updates_needed(f) else usable - self.proven

    def ask_rule(self, shard: ShardRound, rows: tuple[Row, ...], **step: Any) -> list[Effect]:
        """The rule is asked for the aggregate of ``rows``, or for a step to it:
        other fields of ``Aggregate``."""
        ticket = self._next_ticket
        self._next_ticket += 1
        assert shard.serving is not None
        self._tickets[ticket] = (shard, shard.serving)
        shard.ticket = ticket
        own = next((i for i, row in enumerate(rows) if row.peer == self.local), None)
        f = self.f_of(shard)
        log = self.log
        last = log.previous.get(shard.kind) if log is not None else None
        if log is not None and last is not None:
            step["previous"] = last[shard.index]
            step["usual"] = log.usual(shard.kind, shard.index)
        told: list[Effect] = []
        if rows and self.settings.rounds.quorum == "available":
            n, wanted = len(step.get("peers", rows)), f
            f = self.settings.tolerable(wanted, n)
            if (short := wanted - f) != self._short:
                told.append(
                    Report(
                        "reduced_tolerance",
                        {"round": self.round_id, "f": f, "wanted": wanted, "updates": n},
                    )
                )
                self._short = short
        return [
            *told,
            Aggregate(ticket, self.round_id, shard.index, rows, f, own, **step),
        ]

    def f_of(self, shard: ShardRound) -> int:
        """How many liars the rule has to tolerate: all f, but those who are proven to lie, and
        are out. Who has sent no finite numbers is out as well, and is one of f only where the
        updates of the others are too few for more: an honest model may overflow."""
        f = max(0, self.settings.f - len(self.proven.intersection(self.roster)))
        if not shard.faulty:
            return f
        enough_for = self.settings.tolerable(f, len(shard.usable()))
        return max(f - len(set(shard.faulty) - self.proven), enough_for, 0)

    def measured(self, event: Aggregated) -> ShardRound | None:
        """The shard of which this tells what was measured. None when it tells something else,
        or comes too late."""
        shard, _ = self._tickets.get(event.ticket, (None, 0))
        progress = (
            shard.cross_shard_progress
            if shard is not None and shard.ticket == event.ticket
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
        """The rule has answered. None when that is no longer of use: we have promised a later
        attempt meanwhile."""
        shard, attempt = self._tickets.pop(event.ticket, (None, 0))
        if (
            shard is None
            or shard.ticket != event.ticket
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
        """The commit that the rule's answer makes of a shard."""
        assert shard.serving is not None
        progress = shard.cross_shard_progress or CrossShardProgress(
            rows=shard.rows, outside=shard.outside
        )
        contributors: tuple[Contribution, ...] = ()
        if result.payload is not None and progress.step == "combine":
            contributors = progress.verdict
        elif result.payload is not None:
            facts = zip(progress.rows, result.weights, result.outlyingness, strict=True)
            updates = {peer: update for peer, (update, _) in shard.answers.items()}
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
            attempt=shard.serving,
            made_at=shard.serving,
            server=self.local,
            parent=self.parent,
            digest=result.payload.digest if result.payload is not None else b"",
            contributors=contributors,
            rejected=_rejected(shard, progress.outside, result),
            roster=roster,
            loss=shard.mean_loss(progress.rows),
            reason=(progress.why or result.reason)[:REASON_CHARACTERS]
            if result.payload is None
            else "",
            decision=result.decision if decides else (),
            measured=progress.measured if decides else (),
            rates=agree(shard.answers[row.peer][0].rates for row in progress.rows),
            collected=shard.collected,
            replica=replica,
            diverged=diverged,
            kind=shard.kind,
            length=result.length if result.payload is not None else 0.0,
        )

    def timer(
        self, what: Literal["grace", "ask", "lack"], shard: ShardRound, at: float
    ) -> SetTimer:
        assert shard.serving is not None
        return self.timers.set(at, RoundTimer(what, self.round_id, shard.index, shard.serving))


def _rejected(
    shard: ShardRound, outside: Sequence[Row], result: Aggregated
) -> tuple[Rejection, ...]:
    """Return what a commit reports about the peers whose samples it does not use, ascending."""
    found: list[Rejection] = []
    for peer, (update, payload) in shard.answers.items():
        if payload is not None and not payload.finite:
            found.append(Rejection(peer, "non_finite"))
        elif payload is None and update.skipped:
            found.append(Rejection(peer, "skipped"))
    if result.payload is not None:
        # without a measure where the rule could not tell
        measured = zip(outside, result.outside, strict=False)
        found += [Rejection(row.peer, "quarantined", far) for row, far in measured]
    return tuple(sorted(found, key=lambda rejection: rejection.peer))
