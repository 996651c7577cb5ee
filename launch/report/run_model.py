"""Model of a run: the state behind its tables and screens. It applies events, and returns the lines
to print about them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, TypeAlias

from gossip.faults import LINK_KINDS, FaultPlan
from gossip.observe import CommitRow, Event, Judgement, SubjectEvent, events
from gossip.run import ROOM_HINT, in_words, text_of

from . import divergence
from .epochs import Epochs
from .happenings import (
    SLACK_S,
    Blow,
    PartitionRecord,
    RejoinRecord,
    RestartRecord,
    sides_of,
)
from .holders import StateHolders
from .machines import Machines
from .pace import StepPace
from .participation import BOUND, LowWindow, Participation
from .peer_row import PeerRow
from .stages import PeerStage, describe_rebuilt_stage, describe_unlike_profile
from .trust_record import TrustRecord
from .words import at_round, counted, named, numbers

NO_FAULTS = FaultPlan()
EXIT_ASKED = 143  # Exit code of a trainer that left in order after SIGTERM.
WAKING_S = 1.0  # Time that a stopped peer needs to catch up.
UNMET_S = 10.0  # Peers report every 5 s which peers they wait for.
ENDLESS_STEPS = 2**40  # The plan of a training loop without an end.
NOTICED_S = 10.0  # A death noticed later than this after a hang has another cause.
ENDING_S = 5.0  # Finished peers close their links one after the other.
DIVERGENCES_MAX = 100
COMMITS_KEPT = 512
QUIET_S = 2.0  # Minimum time between two lines of a kind about the same peer.


class RunModel:
    """State of a whole run. ``apply`` takes the events in the order in which they arrive.

    Args:
        peers: Ids of the peers, or their number; the ids begin at 0 then. Only events of these
            peers are applied. Other peers appear only in events about them.
        local_steps: Local steps in a round. Events count rounds, printed lines steps.
        stages: Stage of each peer of a pipeline. There a round is one round of each stage, and a
            peer reports about its stage.
    """

    def __init__(
        self,
        peers: int | Iterable[int],
        plan: FaultPlan = NO_FAULTS,
        local_steps: int = 1,
        stages: Mapping[int, PeerStage] | None = None,
    ) -> None:
        self.local_steps, self.stages = local_steps, stages or {}
        self.rows = {
            peer: PeerRow(peer) for peer in (range(peers) if isinstance(peers, int) else peers)
        }
        for peer in plan.byzantine:
            self._subject(peer).lie = "+".join(plan.attack_kinds(peer))
        self.round = -1
        self.commits: deque[CommitRow] = deque(maxlen=COMMITS_KEPT)  # one a round and stage
        self.first: int | None = None  # first reported round
        self.step = 0  # number of completed steps
        self.steps: int | None = None  # planned rounds of the run, if the script set them
        self.saves_to: str | None = None  # "": nowhere; None: not known yet
        self.saves_every: int | None = None
        self.pace = StepPace()
        self.paused = False
        self.loss: float | None = None
        self.server: int | None = None
        self.attempt = 0
        self.alive = 0
        self.participation = Participation()
        self.lost_rounds: set[int] = set()
        self.ready: set[int] = set()
        self.blows: list[Blow] = []
        self.rejoins: list[RejoinRecord] = []
        self.joins: list[RejoinRecord] = []
        # peer that left on request before the end -> its last round
        self.leaves: dict[int, int] = {}
        self.outages: list[PartitionRecord] = []
        self.holders = StateHolders()
        # the lost progress at each restart of the swarm with fresh weights
        self.anew: list[dict[str, Any]] = []
        self.machines = Machines()
        self.unannounced: dict[int, str] = {}  # peer without an address on record -> why
        # peers that ended without confirmation that others have the same parameters
        self.unconfirmed: set[int] = set()
        # peer that the plan has killed -> seconds until its restart
        self.restarts: dict[int, float] = {}
        self.divergences: list[dict[str, Any]] = []
        self.trust = TrustRecord()
        self.own_restarts: list[RestartRecord] = []  # after unplanned deaths
        self.hangs: dict[int, float] = {}  # peer -> seconds until it is woken
        self.halted: dict[int, events.Halted] = {}
        self._early_ends = {-1}  # steps
        self.epochs = Epochs()
        self._batch_told: tuple[int, int] | None = None  # round and peers of the last line on it
        self._told: dict[tuple[type[Event], object], float] = {}
        self._told_ever: set[tuple[type[Event], object]] = set()
        # peer -> peers that it waits for at the start, and when it last reported them
        self._unmet: dict[int, tuple[frozenset[int], float]] = {}

    @property
    def accuracy(self) -> float | None:
        """Mean of the last logged accuracy of honest running peers."""
        seen = [
            row.accuracy
            for row in self.rows.values()
            if row.accuracy is not None and not row.lie and row.state != "gone"
        ]
        return sum(seen) / len(seen) if seen else None

    def have_begun(self, peers: Iterable[int]) -> bool:
        """Whether one of the peers trains, or has finished."""
        return any(self.rows[peer].state in ("training", "done") for peer in peers)

    @property
    def here(self) -> list[int]:
        return [
            row.peer
            for row in self.rows.values()
            if row.state not in ("starting", "gone", "elsewhere")
        ]

    @property
    def missing(self) -> list[int]:
        return [row.peer for row in self.rows.values() if row.state == "starting"]

    def unmet(self, now: float) -> set[int]:
        """Return the peers that others wait for at the start: they have not started, have not
        finished ``prepare``, or have no connection."""
        return {
            peer
            for lacks, said_at in self._unmet.values()
            if now - said_at < UNMET_S
            for peer in lacks
        }

    def awaited(self, now: float) -> list[int]:
        """Return all peers that the start is known to wait for."""
        return sorted(self.unmet(now).union(self.missing))

    def expect(self, peer: int) -> None:
        """Add a peer, so that its events are applied."""
        self.rows[peer] = PeerRow(peer)

    def _subject(self, peer: int) -> PeerRow:
        """Return the row of the subject of an event."""
        return self.rows.setdefault(peer, PeerRow(peer, state="elsewhere"))

    def apply(self, event: Event) -> list[str]:
        """Apply one event. Return the lines to print, without time or colour; mostly none."""
        row = None if event.peer is None else self.rows.get(event.peer)
        if row is None:
            return []
        self.holders.apply(event)
        if event.t > row.figures.last_at:
            row.figures.last_at = event.t
        about = []
        if isinstance(event, SubjectEvent):
            about = [self._subject(event.subject)]
            if isinstance(event, Judgement) and not about[0].is_news(event):
                return []
        part, handler = HANDLERS.get(type(event), (RunModel, None))
        if handler is None:
            return []
        return handler(self.trust if part is TrustRecord else self, row, event, *about)

    def apply_recorded(self, event: Event) -> list[str]:
        """Apply an event from the files of the run, as ``apply`` does. Its writer is added to the
        run's peers."""
        if event.peer is None:
            return []
        row = self.rows.get(event.peer)
        if row is None:
            self.expect(event.peer)
        elif row.state == "elsewhere":
            row.state = "starting"
        lines = self.apply(event)
        if isinstance(event, events.Halted) and event.exit_code:
            # With a launcher, the launcher's own event reports the same later.
            row = self.rows[event.peer]
            row.state, row.exit = "gone", text_of(event.reason) or ""
        return lines

    def apply_commit(self, commit: CommitRow) -> bool:
        """Apply a commit. Return whether it is the first of its round and stage. Of commits on two
        branches the later record counts. Shards beyond the first are ignored."""
        if commit.shard or self._replaces_commit(commit):
            return False
        self.commits.append(commit)
        contributed = commit.peers
        self._subject(commit.server).figures.served += 1
        for peer in contributed.union(commit.roster):
            self._subject(peer)
        for row in self.rows.values():
            place = self.stages.get(row.peer)
            if place is None or place.number == commit.stage:
                row.figures.record_commit(row.peer in contributed)
        return True

    def _replaces_commit(self, commit: CommitRow) -> bool:
        """Replace an earlier commit of the round and stage. Return whether there was one."""
        for place in range(len(self.commits) - 1, -1, -1):
            if self.commits[place].stage != commit.stage:
                continue
            if self.commits[place].round == commit.round:
                self.commits[place] = commit
                return True
            if self.commits[place].round < commit.round:
                return False
        return False

    @property
    def not_saved(self) -> str:
        """Why the last checkpoint was not written: the reason of all peers that finished, or of all
        that were stopped; "": it was written."""
        done = [peer for peer, row in self.rows.items() if row.state == "done"] or [*self.halted]
        said = [row.not_saved for row in map(self.halted.get, done) if row is not None]
        return said[0] or "" if said and all(said) and len(said) == len(done) else ""

    # --- a peer's life ----------------------------------------------------------------------------

    def _spawned(self, row: PeerRow, event: events.Spawned) -> list[str]:
        if event.joins:
            self.joins.append(RejoinRecord(row.peer, event.incarnation or 0, event.t))
            row.state = "starting"
        row.host = event.host or row.host
        # The peer may end before its own first event.
        row.incarnation = event.incarnation or 0
        waits = [each for each in self.own_restarts if each.peer == row.peer]
        if waits and waits[-1].number is not None and waits[-1].incarnation is None:
            waits[-1].incarnation = row.incarnation
        return []

    def _restarting(self, row: PeerRow, event: events.Restarting) -> list[str]:
        number, wait_s = event.number or 0, event.wait_s or 0.0
        why = str(event.why)
        self.own_restarts.append(RestartRecord(row.peer, row.round, why, number, wait_s))
        of = f"restart {number} of {event.of}"
        return [f"+ peer {row.peer} is restarted in {wait_s:g} s ({of}): {why}"]

    def _restarts_used_up(self, row: PeerRow, event: events.RestartsUsedUp) -> list[str]:
        why, of = str(event.why), event.of or 0
        self.own_restarts.append(RestartRecord(row.peer, row.round, why, None))
        used = "its restart is" if of == 1 else f"its {of} restarts are"
        return [f"x peer {row.peer} is not restarted, {used} used up: {why}"]

    def _waiting(self, row: PeerRow, event: events.Waiting) -> list[str]:
        if self._is_new(row):
            line = f"! peer {row.peer} has waited {event.waited_s} s to be admitted"
            return self._once(event, row.peer, line)
        if event.missing is not None:
            self._unmet[row.peer] = frozenset(event.missing), event.t
        return []

    def _started(self, row: PeerRow, event: events.Started) -> list[str]:
        row.state, row.exit, row.left, row.asked = "here", "", False, False
        row.pause = ""
        row.incarnation, row.pid = event.incarnation or 0, event.pid or 0
        row.host = event.host or row.host
        self.unannounced.pop(row.peer, None)
        if row.incarnation > 0 and not self._is_new(row):
            last = self.blow(row.peer)
            self.rejoins.append(RejoinRecord(row.peer, row.incarnation, last.at if last else None))
        return []

    def _ready(self, row: PeerRow, event: events.Ready) -> list[str]:
        self.ready.add(row.peer)
        row.state = "training"
        present = event.present
        without = [] if present is None else sorted(self.unmet(event.t).difference(present))
        line = (
            f"! it begins without {_in_line(without)}: those that come later take "
            "the state of the others"
        )
        return self._once(event, None, line) if without else []

    def _plan(self, row: PeerRow, event: events.Plan) -> list[str]:
        """Record the plan of the script, in rounds. The last report counts."""
        steps, every = event.steps, event.every
        if isinstance(steps, int) and 0 < steps < ENDLESS_STEPS:
            self.steps = steps
        folder = str(event.folder or "")
        in_stage = self.stages and re.fullmatch(r"stage-\d+", PurePath(folder).name)
        self.saves_to = str(PurePath(folder).parent) if in_stage else folder
        self.saves_every = every if isinstance(every, int) else None
        return []

    def _metrics(self, row: PeerRow, event: events.Metrics) -> list[str]:
        if event.loss is not None:
            row.loss, row.logs_loss = event.loss, True
        if event.accuracy is not None:
            row.accuracy = event.accuracy
        return []

    def _used(self, row: PeerRow, event: events.Usage) -> list[str]:
        self.machines.record_usage(row.host, event)
        row.figures.record_usage(event)
        return []

    def _continued(self, row: PeerRow, event: events.Continued) -> list[str]:
        row.state = "here"
        return []

    def _recovering(self, row: PeerRow, event: events.Recovering) -> list[str]:
        reason = str(event.reason)
        return [f"~ peer {row.peer} changes sides: {reason}"] if "branch" in reason else []

    def _restored(self, row: PeerRow, event: events.Restored) -> list[str]:
        self.unconfirmed.discard(row.peer)
        row.state = "training"
        return [f"+ peer {row.peer} re-synced from peer {event.from_} at round {event.round}"]

    def _stage_rebuilt(self, row: PeerRow, event: events.StageRebuilt) -> list[str]:
        row.state = "training"
        return [f"+ {describe_rebuilt_stage(event)}"]

    def _stage_lost(self, row: PeerRow, event: events.StageLost) -> list[str]:
        who = "?" if event.peers is None else _in_line(event.peers)
        line = f"x stage {event.stage} has lost all its peers ({who}): the others wait for one"
        return self._once(event, event.stage, line)

    def _lingering(self, row: PeerRow, event: events.Lingering) -> list[str]:
        lost, most = named(event.for_ or ()), event.at_most_s
        return self._once(
            event, None, f"~ peer {row.peer} is done; it waits for {lost} up to {most} s"
        )

    def _divergence(self, row: PeerRow, event: events.Divergence) -> list[str]:
        entry = divergence.entry_of(event)
        if entry is None:
            return [f"! {divergence.describe(event)}"]
        if len(self.divergences) < DIVERGENCES_MAX:
            self.divergences.append(entry)
        return [f"! peer {row.peer} {divergence.describe(event)}"]

    def _ends_unconfirmed(self, row: PeerRow, event: events.UnconfirmedResult) -> list[str]:
        self.unconfirmed.add(row.peer)
        same, other, silent = event.same, event.other, event.silent or "none"
        return [
            f"! peer {row.peer} ends unconfirmed: {same} peers hold its last parameters, {other} "
            f"hold others; silent: {silent}"
        ]

    def _halted(self, row: PeerRow, event: events.Halted) -> list[str]:
        self.halted[row.peer] = event
        # The node of a killed trainer reports this after the trainer's end.
        row.state = "done" if row.state != "gone" else "gone"
        # Round events are throttled, so the last round may not have been reported.
        if event.round is not None:
            row.step += max(0, event.round - row.round)
            self.step = max(self.step, row.step)
            row.round = max(row.round, event.round)
            self.round = max(self.round, event.round)
        early = event.reason == "finished" and row.step < (self.steps or 0)
        if not early or row.step in self._early_ends:
            return []
        self._early_ends.add(row.step)
        return [f"~ peer {row.peer} ended after {row.step} of {self.steps} rounds"]

    # --- reports of a peer about itself -----------------------------------------------------------

    def _message(self, row: PeerRow, event: events.Error | events.Over) -> list[str]:
        mark = "~" if isinstance(event, events.Over) else "!"
        return [f"{mark} peer {row.peer}: {event.message}"]

    def _notice(self, row: PeerRow, event: events.Notice) -> list[str]:
        return [f"! peer {row.peer}: {event.message} ({event.hint})"]

    def _identical_updates(self, row: PeerRow, event: events.IdenticalUpdates) -> list[str]:
        line = (
            f"! the updates of {_in_line(event.peers)} are the same to the last bit: they learn "
            "from the same batches, and count as one. Read data through peer.shard(loader), or "
            "draw it without a seed of your own"
        )
        return self._once_ever(event, None, line)

    def _fork(self, row: PeerRow, event: events.Fork) -> list[str]:
        return self._once(event, row.peer, f"! peer {row.peer} sees a fork at round {event.round}")

    def _events_suppressed(self, row: PeerRow, event: events.EventsSuppressed) -> list[str]:
        what = f"{event.of} about {event.about}"
        line = f"! events.jsonl has only some of the events {what}, and counts the others"
        return self._once(event, event.about, line)

    def _write_failed(self, row: PeerRow, event: events.CannotWrite) -> list[str]:
        why = str(event.why)
        message, hint = in_words(str(event.path), why)
        # Each process reports it once, and they share the disk.
        return self._once_ever(event, why, f"! {message}", f"  {hint}")

    def _unannounced(self, row: PeerRow, event: events.Unannounced) -> list[str]:
        why = self.unannounced[row.peer] = str(event.why)
        told = (
            f"! peers cannot meet: cannot write {event.path} ({why}), where they "
            "look for each other"
        )
        return self._once(event, None, told, f"  {ROOM_HINT}")

    def _announced(self, row: PeerRow, event: events.Announced) -> list[str]:
        self.unannounced.pop(row.peer, None)
        return []

    # --- rounds -----------------------------------------------------------------------------------

    def _reduced_tolerance(self, row: PeerRow, event: events.ReducedTolerance) -> list[str]:
        updates = counted(event.updates or 0, "update")
        f, wanted = event.f, event.wanted
        return self._once(event, None, f"! {updates} in round {event.round}: f={f} of {wanted}")

    def _closed_without(self, row: PeerRow, event: events.Late) -> list[str]:
        late = map(self.rows.get, event.missing or ())
        for missing in late:
            if missing is not None and event.round is not None:
                missing.figures.record_late(event.round)
        return []

    def _paused(self, row: PeerRow, event: events.Paused) -> list[str]:
        if (number := self.outage_at(event.t)) is not None:
            self.outages[number].paused.add(row.peer)
        at, why = event.round, f" {event.why}" if event.why else ""
        alive = f"alive are {_alive(event.alive)}, a round needs {event.need}{why}"
        row.pause = f"since round {at}: {alive}"
        # A pause in an earlier round is that of a single peer, which was away or is cut off.
        self.paused = self.paused or at is None or at >= self.round
        return self._once(event, None, f"|| paused at round {at}: {alive}")

    def _resumed(self, row: PeerRow, event: events.Resumed) -> list[str]:
        self.paused, row.pause = False, ""
        return self._once(event, None, f"~ going on: alive are {_alive(event.alive)}")

    def _minority_continues(self, row: PeerRow, event: events.MinorityContinues) -> list[str]:
        if (number := self.outage_at(event.t)) is not None:
            self.outages[number].alone.update(event.alive or ())
        return [
            f"! {named(event.alive or ())} of {event.of} go on alone from round {event.round}: "
            "the others are dead for them"
        ]

    def _lost_round(self, row: PeerRow, event: events.LostRound) -> list[str]:
        lost = event.round
        if lost is None or lost in self.lost_rounds:
            return []
        self.lost_rounds.add(lost)
        # Lost rounds mostly come in series. The summary counts them.
        return self._once(event, None, f"! round {lost} is lost: {event.reason}")

    def _fault_over(self, row: PeerRow, event: events.FaultOver) -> list[str]:
        known = [outage for outage in self.outages if outage.fault == event.fault]
        on = [outage for outage in known if outage.over_at is None]
        for outage in on:
            outage.over_at = event.t
        if known and not on:
            return []
        return [f"* over: {event.fault} at round {event.round}"]

    # --- reports of a peer about another ----------------------------------------------------------

    def _joined(self, row: PeerRow, event: events.Joined, subject: PeerRow) -> list[str]:
        if subject.state != "elsewhere" or self._is_new(row):
            return []
        return self._once(event, subject.peer, f"+ peer {subject.peer} has joined")

    def _passed_over(
        self, row: PeerRow, event: events.PassedOver | events.ServesAgain, subject: PeerRow
    ) -> list[str]:
        again = isinstance(event, events.ServesAgain)
        how = "serves again" if again else "serves no more for a while: its results did not come"
        return self._once(event, subject.peer, f"~ peer {subject.peer} {how}")

    def _unskipped(self, row: PeerRow, event: events.Unskip, subject: PeerRow) -> list[str]:
        subject.skipped_by.discard(row.peer)
        return []

    def _alive_again(self, row: PeerRow, event: events.AliveAgain, subject: PeerRow) -> list[str]:
        subject.skipped_by.discard(row.peer)
        blow = self.blow(subject.peer)
        if blow is not None and event.t > blow.at:
            blow.returned = True
        return self._once(event, subject.peer, f"~ peer {subject.peer} is back")

    def _has_left(self, row: PeerRow, event: events.Left, subject: PeerRow) -> list[str]:
        subject.left = True
        return []

    def _round(self, row: PeerRow, event: events.Round) -> list[str]:
        row.state, row.round, row.pause = "training", event.round or 0, ""
        if event.loss is not None and not row.logs_loss:  # A logged loss is the peer's own.
            row.loss = event.loss
        row.step = event.step or row.round + 1
        row.pace.stepped(event.t, row.step)
        self._computed(row, event)
        if row.round > self.round or event.server is None or self.stages:
            # All peers, or all of a stage, report the same about a round with a commit.
            for peer, score in event.scores.items():
                if peer in self.rows:
                    self.rows[peer].trust = score
        for arrival in (*self.rejoins, *self.joins):
            if arrival.is_of(row.peer, row.incarnation):
                arrival.record_participation(row.round, event.t)
        told = self._record_participation(row.round, event)
        first = event.rounds.start
        self.first = first if self.first is None else min(self.first, first)
        if row.round >= self.round:
            self.round, self.server, self.attempt = row.round, event.server, event.attempt or 0
            self.paused = False
            if row.step > self.step:
                self.step = row.step
                self.pace.stepped(event.t, row.step)
            self.loss = self.loss if event.loss is None else event.loss
            self.alive = event.alive_count or 0
            if self.stages:
                self.alive = sum(each.state == "training" for each in self.rows.values())
        return told

    def _read_contributors(self, event: events.Round) -> tuple[list[int], int] | None:
        """Return the contributors and the number of living peers; None: the event lacks them, or
        they mean nothing. In gossip rounds, which have no server, contributors differ from peer to
        peer. In a pipeline a round waits until all its work is done."""
        if self.stages or event.server is None:
            return None
        who, alive = event.contributors, event.alive
        return (who, alive) if who is not None and isinstance(alive, int) else None

    def _record_participation(self, round_id: int, event: events.Round) -> list[str]:
        """Record the participation in the rounds of an event. The first report of a round counts.
        Collective operations are no steps. A peer in quarantine does not count as missing."""
        if (told := self._read_contributors(event)) is None:
            return []
        who, alive = told
        if not who and self._may_be_operation(round_id, event.step):
            return []
        kept_out = sum(
            row.quarantined and row.state != "gone" and row.peer not in who
            for row in self.rows.values()
        )
        found = self.participation.observe(event.rounds, len(who), alive - kept_out)
        return [_low_participation(window) for window in found]

    def _may_be_operation(self, round_id: int, step: int | None) -> bool:
        """Whether rounds without contributors may be collective operations: since the last reported
        round there are fewer steps than rounds, or the report is late."""
        behind = step is not None and step - self.step < round_id - self.round
        return behind or round_id <= self.round

    def _computed(self, row: PeerRow, event: events.Round) -> None:
        """Record the time that the peer needed for its update, if it has contributed one."""
        who, took_us = event.contributors, event.took_us
        if took_us is None or who is None:
            return
        at = bisect_left(who, row.peer)  # The contributors of a commit are in order.
        if at == len(who) or who[at] != row.peer:
            return
        if at < len(took_us) and (took := took_us[at]):
            row.pace.computed(event.t, took / 1e6)

    def _batch(self, row: PeerRow, event: events.Batch) -> list[str]:
        """Return the line about the batch policy, at the start and whenever the number of peers
        that share a round changes. The first report counts."""
        at, policy, n = event.round, event.policy, event.peers
        local, samples, known = event.local, event.samples, self._batch_told
        if at is None or n is None or (known is not None and (at <= known[0] or n == known[1])):
            return []
        self._batch_told = at, n
        each = (
            f"{counted(n, 'peer')} x {counted(local or 0, 'sample')}"
            if samples == n * (local or 0)
            else f"{counted(n, 'peer')}, at most {counted(local or 0, 'sample')} each"
        )
        since = f" from round {at} on" if known is not None else ""
        return [
            f"= batch{since}: {each}, {samples} a round ({policy}); the learning rate is left "
            "as it is"
        ]

    def _is_unlike_profile(
        self, row: PeerRow, event: events.UnlikeProfile, subject: PeerRow
    ) -> list[str]:
        """Return the line about the difference from the profile. The first report counts."""
        line = f"! peer {subject.peer} {describe_unlike_profile(event)}"
        return self._once_ever(event, subject.peer, line)

    def _epoch(self, row: PeerRow, event: events.Epoch) -> list[str]:
        return self.epochs.apply(event)

    def _fault(self, row: PeerRow, event: events.Fault) -> list[str]:
        kind, at = str(event.kind), event.round or 0
        seconds = event.seconds or 0.0
        if kind in ("crash", "restart", "hang"):
            over = event.t + seconds + WAKING_S if kind == "hang" else 0.0
            self.blows.append(
                Blow(row.peer, row.incarnation, kind, at, event.t, planned=True, until=over)
            )
        if kind == "restart":
            self.restarts[row.peer] = seconds
        if kind == "hang":
            self.hangs[row.peer] = seconds
            row.state = "stopped"
            return [f"* injected: SIGSTOP peer {row.peer} for {seconds:g} s at round {at}"]
        if kind in ("crash", "restart"):
            serving = ", which serves it" * (event.fault or "").startswith("crash:server")
            return [f"* injected: SIGKILL peer {row.peer}{serving} at round {at}"]
        if kind == "leave":
            return [f"* injected: SIGTERM peer {row.peer} at round {at}"]
        if kind in LINK_KINDS:
            fault = str(event.fault)
            if any(
                each.fault == fault and each.over_at is None and event.t - each.at < QUIET_S
                for each in self.outages
            ):
                return []  # If peers cannot record which of them reports the fault, all do.
            self.outages.append(PartitionRecord(fault, at, event.t, sides=sides_of(fault)))
            return [f"* injected: {fault} at round {at}"]
        return [f"* injected: {event.fault or kind} by peer {row.peer}"]

    def _is_new(self, row: PeerRow) -> bool:
        """Whether this incarnation of the peer joined during the run."""
        return any(join.is_of(row.peer, row.incarnation) for join in self.joins)

    def _begins_anew(self, row: PeerRow, event: events.BegunAnew) -> list[str]:
        if self.round < 0 or self.holders.anybody:
            return []
        was = self.holders.in_words()
        self.anew.append(
            {"lost_round": self.holders.round, **self.holders.metrics, "wall": event.wall}
        )
        self.holders.begin_anew()
        self.participation.begin_anew()
        self.round, self.first, self.step, self.loss = -1, None, 0, None
        for row in self.rows.values():
            row.round, row.loss, row.accuracy, row.logs_loss = -1, None, None, False
            row.judged_round = -1
        return [
            f"! the swarm begins anew, with fresh weights: all that was learnt until {was} is "
            "lost (--begin-anew)"
        ]

    def outage_at(self, t: float) -> int | None:
        """Return the number of the last outage at a time, or shortly before it."""
        on = [
            i
            for i, o in enumerate(self.outages)
            if o.at - SLACK_S <= t <= (t if o.over_at is None else o.over_at + WAKING_S)
        ]
        return on[-1] if on else None

    def blow(self, peer: int) -> Blow | None:
        """Return the last blow that hit the peer."""
        return next((blow for blow in reversed(self.blows) if blow.peer == peer), None)

    def _slept(self, peer: int, since: float, until: float) -> bool:
        """Whether the peer was stopped at any time between ``since`` and ``until``."""
        return any(
            other.peer == peer and other.at <= until and since <= other.until
            for other in self.blows
            if other.kind == "hang"
        )

    def _noticed(
        self, row: PeerRow, event: events.Dead | events.Skip, subject: PeerRow
    ) -> list[str]:
        subject.skipped_by.add(row.peer)
        if isinstance(event, events.Skip):
            subject.figures.skipped_for = text_of(event.reason) or ""
        blow = self.blow(subject.peer)
        if subject.left or subject.state == "done":
            return []
        if blow is not None and (
            blow.returned or event.t < blow.at - SLACK_S or 0.0 < blow.until < event.t - NOTICED_S
        ):
            blow = None  # The event is about another time: a peer that was cut off reports late.
        # A stopped peer cannot notice a death.
        if blow is not None and not self._slept(row.peer, blow.at, event.t):
            blow.noticed(event, row.peer)
        if isinstance(event, events.Skip):
            if blow is not None and not blow.told_skip:
                blow.told_skip = True
                after = f"after {(event.t - blow.at) * 1000:.0f} ms"
                return [f"! peer {subject.peer} skipped by peer {row.peer} {after}: {event.reason}"]
            if blow is not None or self._ending(event.t) or self._is_through(row, event):
                return []
            line = f"! peer {subject.peer} skipped by peer {row.peer}: {event.reason}"
            return self._once(event, subject.peer, line)
        return self._died(row, subject, event, blow)

    def _died(
        self, row: PeerRow, subject: PeerRow, event: events.Dead, blow: Blow | None
    ) -> list[str]:
        """Return the lines about a peer that declares another dead. ``blow``: the fault that
        explains it."""
        accuser = row.peer if event.by is None else event.by
        declared = f"x peer {subject.peer} declared dead by peer {accuser}"
        if blow is not None and not blow.told_dead:
            blow.told_dead = True
            skip = (
                f"; {counted(len(blow.skips), 'peer')} skipped it within {blow.skip_ms:.0f} ms"
                if blow.skips and blow.skip_ms is not None
                else ""
            )
            return [f"{declared} after {event.t - blow.at:.1f} s{skip}"]
        if blow is None and self._apart(row.peer, subject.peer, event.t):
            line = (
                f"! peer {subject.peer} is dead for peer {row.peer}: the partition is between them"
            )
            return self._once(event, ("apart", subject.peer), line)
        if blow is not None:
            return []
        return self._once(event, subject.peer, declared)

    def _apart(self, one: int, other: int, t: float) -> bool:
        """Whether a partition separates two peers, or did so shortly before."""
        number = self.outage_at(t)
        return number is not None and self.outages[number].is_between(one, other)

    def _ending(self, t: float) -> bool:
        """Whether peers close their links because the run ends."""
        ends = [event.t for event in self.halted.values() if not event.exit_code]
        return any(0 <= t - end < ENDING_S for end in ends)

    def _is_through(self, row: PeerRow, event: events.Skip) -> bool:
        """Whether the peer had completed all steps at the event. If the link to another peer closes
        then, that peer has completed them, too; its announcement of the end may come later."""
        if self.steps is None or event.round is None:
            return False
        since = event.round - (row.round + 1)  # rounds that its events have not reported yet
        return row.step + since >= self.steps

    def _exited(self, row: PeerRow, event: events.Exited) -> list[str]:
        """Record the end of a peer's process, from its launcher: exit code or signal, and whether
        it was planned."""
        number, code = event.signal, event.code
        row.exit, row.asked = event.how or "", bool(event.stopping)
        for other in self.rows.values():
            other.skipped_by.discard(row.peer)
        if code == EXIT_ASKED:
            row.state = "gone"
            self.leaves[row.peer] = row.round
            return (
                []
                if event.stopping
                else [f"- peer {row.peer} has left {at_round(row.round)}: it was asked to"]
            )
        row.state = "done" if code == 0 else "gone"
        last = self.blow(row.peer)
        told = last is not None and last.kind != "hang" and last.incarnation == row.incarnation
        if row.state == "gone" and not event.stopping and not told:
            kind = "killed" if number is not None else "raised"
            self.blows.append(
                Blow(row.peer, row.incarnation, kind, row.round, event.t, planned=False)
            )
            # For a script that raised, the launcher prints the error.
            return (
                [f"x peer {row.peer} {row.exit} {at_round(row.round)}: not in the fault plan"]
                if kind == "killed"
                else []
            )
        return []

    def _once(self, event: Event, about: object, *lines: str) -> list[str]:
        """Return the lines, unless an event of this kind about the same subject had lines in the
        last ``QUIET_S``."""
        last = self._told.get((type(event), about))
        self._told[type(event), about] = event.t
        return [] if last is not None and event.t - last < QUIET_S else [*lines]

    def _once_ever(self, event: Event, about: object, *lines: str) -> list[str]:
        """Return the lines, unless an event of this kind about the same subject had lines
        before."""
        told = (type(event), about)
        if told in self._told_ever:
            return []
        self._told_ever.add(told)
        return [*lines]


Handler: TypeAlias = tuple[type, Callable[..., list[str]] | None]


def _handlers(part: type) -> Iterator[tuple[type[Event], Handler]]:
    """Yield each kind of event with the method of a part that applies it. The type of the parameter
    ``event`` names the kind. An event about another peer comes with the row of that peer."""
    for method in vars(part).values():
        match getattr(method, "__annotations__", {}):
            case {"row": "PeerRow", "event": kinds, "return": "list[str]", **more} if more in (
                {},
                {"subject": "PeerRow"},
            ):
                for kind in kinds.split(" | "):
                    yield getattr(events, kind.removeprefix("events.")), (part, method)


_FOUND = [each for part in (RunModel, TrustRecord) for each in _handlers(part)]
HANDLERS: dict[type[Event], Handler] = dict(_FOUND)
assert len(HANDLERS) == len(_FOUND), "two methods handle one kind of event"


def _low_participation(window: LowWindow) -> str:
    nobody = window.without_anybody
    why = (
        f"in {counted(nobody, 'round')} there was no update that can be used: "
        "the loss was not finite, or optimizer.step() was left out"
        if nobody
        else "the others were late. Look at gossip top, and raise --round-timeout where steps "
        "or links take long"
    )
    return (
        f"! only {window.mean:.0%} of the peers that are alive took part in the rounds "
        f"{window.first} to {window.last}, on average (less than {BOUND:.0%}): {why}"
    )


def _alive(alive: list[int] | int | None) -> str:
    """Return peers as ``0-3,5``; older runs have only the number of peers."""
    return numbers(alive) if isinstance(alive, list) else str(alive)


def _in_line(peers: list[int] | None) -> str:
    return ", ".join(map(str, peers or ()))
