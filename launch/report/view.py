"""View of a run by its launcher: the state behind its tables, and the events that are worth a line
to a person.

Pure: fed with event rows, it keeps the state that tables are drawn from and returns
the lines to print.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, ClassVar, Literal, TypeAlias

from gossip.faults import LINK_KINDS, FaultPlan
from gossip.run import ROOM_HINT, in_words

from . import divergence, lost_stages, speeds
from .happenings import (
    SLACK_S,
    Blow,
    PartitionRecord,
    RejoinRecord,
    RestartRecord,
    sides_of,
)
from .holders import StateHolders
from .pace import StepPace
from .participation import BOUND, LowWindow, Participation, low_influence
from .stages import PeerStage
from .words import at_round, counted, named, numbers

Row: TypeAlias = Mapping[str, Any]
State = Literal["starting", "here", "training", "stopped", "gone", "done", "elsewhere"]
"""``elsewhere``: another launcher's peer, of which this one only hears."""
NO_FAULTS = FaultPlan()
JUDGEMENTS = frozenset(("parole", "quarantined", "suspected", "trusted"))
"""Events in which peers report the trust of another peer, each in the same rounds."""
EXIT_ASKED = 143  # of a trainer that was sent SIGTERM, and left politely
WAKING_S = 1.0  # a peer that was stopped needs a moment to catch up
EPOCHS_EVERY_S, EPOCHS_EVERY_S_MAX = 5.0, 60.0  # short epochs share a line, later on longer ones
UNMET_S = 10.0  # peers say every 5 s whom they wait for
ENDLESS_STEPS = 2**40  # planned by a training loop that has no end of its own
NOTICED_S = 10.0  # no longer after the end of a hang is a death one of it
ENDING_S = 5.0  # peers that have finished close their links one after the other
DIVERGENCES_MAX = 100
QUIET_S = 2.0  # a second line of the same kind about the same peer comes no sooner


@dataclass(slots=True)
class PeerRow:
    """One peer, as the launcher and the others see it."""

    peer: int
    state: State = "starting"
    incarnation: int = 0
    pid: int = 0
    round: int = -1
    loss: float | None = None
    logs_loss: bool = False  # ``loss`` is what its script has logged, and not the mean of a round
    accuracy: float | None = None
    trust: float = 1.0
    reasons: tuple[str, ...] = ()
    reasons_round: int | None = None  # in which they were told
    judged_round: int = -1  # of what was told last of its trust
    suspected: bool = False
    quarantined: bool = False
    skipped_by: set[int] = field(default_factory=set)
    left: bool = False  # it said goodbye: whatever is said of it then is no news
    pause: str = ""  # why it waits for a quorum; "": it does not
    lie: str = ""
    exit: str = ""
    asked: bool = False  # it was stopped, as the whole run is
    step: int = 0  # so many are done
    pace: StepPace = field(default_factory=StepPace)

    def because(self, event: Row) -> None:
        """Takes over why it is doubted, and since which round that is known."""
        self.reasons = tuple(map(str, event.get("reasons") or ()))
        at = event.get("round")
        self.reasons_round = at if isinstance(at, int) else None

    def is_news(self, event: Row) -> bool:
        """Whether what is told of its trust is no older than what was told last: who was away tells
        of rounds that the others had long ago."""
        at = event.get("round")
        return not isinstance(at, int) or at >= self.judged_round

    @property
    def doubt(self) -> str:
        """Why it is doubted, as it was told last; "": it is not."""
        if not self.reasons:
            return ""
        at = "" if self.reasons_round is None else f"round {self.reasons_round}: "
        return f"{at}{self.reasons[0]}"


class RunView:
    """State of a whole run. ``feed`` takes the rows in the order in which they arrive.

    Args:
        peers: Whose rows come: how many, from 0 on, or which. Others are only spoken of.
        local_steps: Of the script in a round. What peers tell counts rounds; people, who are shown
            it, count steps.
        stages: Of a pipeline, by peer. A round is then one of each stage, and what a peer tells of
            it is about its own.
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
        self.first: int | None = None  # round that was told of
        self.step = 0  # so many are done
        self.steps: int | None = None  # rounds of the whole run, where the script has said so
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
        # who was asked to leave before the end, and did -> its round then
        self.leaves: dict[int, int] = {}
        self.outages: list[PartitionRecord] = []
        # peer -> when it first fell under the threshold, and why
        self.suspicions: dict[int, dict[str, Any]] = {}
        self.quarantines: set[int] = set()
        self.holders = StateHolders()
        # what was lost each time that the swarm began anew, with fresh weights
        self.anew: list[dict[str, Any]] = []
        self._cannot_write: set[str] = set()
        self.unannounced: dict[int, str] = {}  # whose address cannot be written down, and why
        # who could not tell whether others hold the parameters that it has ended with
        self.unconfirmed: set[int] = set()
        # peer that the plan has killed -> seconds after which to start it again
        self.restarts: dict[int, float] = {}
        self._identical = False  # whether that was said
        self.divergences: list[dict[str, Any]] = []
        self.unequal_updates: float | None = None  # by how much more than by chance
        # peer -> mean weight of 20 updates in multiples of an equal one, where it was below half
        self.low_influence: dict[int, float] = {}
        self.own_restarts: list[RestartRecord] = []  # of those that died by themselves
        self.hangs: dict[int, float] = {}  # peer -> seconds after which to wake it
        self.halted: dict[int, Mapping[str, Any]] = {}
        self._early_ends = {-1}  # steps
        # completed ones, as the first peer that came to their end tells
        self.epochs: dict[int, Mapping[str, Any]] = {}
        self._batch_told: tuple[int, int] | None = None  # since which round, how many peers
        self._unlike_profile: set[int] = set()  # of whom it was said
        self._shares: dict[int, int] = {}  # in which round a peer's share changed last
        self._epochs_told, self._epochs_told_at = 0, float("-inf")
        self._epochs_every_s = EPOCHS_EVERY_S
        self._left_told = False  # whether an epoch that has left samples was told of
        self._told: dict[tuple[str, int], float] = {}
        # who here lacks whom at the start, and when it last said so
        self._unmet: dict[int, tuple[frozenset[int], float]] = {}

    @property
    def accuracy(self) -> float | None:
        """Mean of what honest running peers last logged."""
        seen = [
            row.accuracy
            for row in self.rows.values()
            if row.accuracy is not None and not row.lie and row.state != "gone"
        ]
        return sum(seen) / len(seen) if seen else None

    def have_begun(self, peers: Iterable[int]) -> bool:
        """Whether one of them trains, or has done so to the end."""
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
        """Return the peers that others wait for at the start: those that have not come, or not to
        the end of ``prepare``, or not through."""
        return {
            peer
            for lacks, said_at in self._unmet.values()
            if now - said_at < UNMET_S
            for peer in lacks
        }

    def awaited(self, now: float) -> list[int]:
        """All whom the start waits for, as far as is known here."""
        return sorted(self.unmet(now).union(self.missing))

    def expect(self, peer: int) -> None:
        """Rows of this one come from now on, too."""
        self.rows[peer] = PeerRow(peer)

    def _subject(self, peer: int) -> PeerRow:
        """Return the row of the peer that somebody speaks of."""
        return self.rows.setdefault(peer, PeerRow(peer, state="elsewhere"))

    def feed(self, event: Row) -> list[str]:
        """Takes in one row. Returns what to print, without time or colour; mostly nothing."""
        peer, name = event.get("peer"), str(event.get("event"))
        t = float(event.get("t") or 0.0)
        row = self.rows.get(peer) if isinstance(peer, int) else None
        if row is None:
            return []
        self.holders.feed(event)
        subject = self._subject(event["subject"]) if isinstance(event.get("subject"), int) else None
        if name in self._OWN:
            return self._OWN[name](self, row, event, t)
        if name in self._ABOUT and subject is not None:
            if name in JUDGEMENTS:
                if not subject.is_news(event):
                    return []
                at = event.get("round")
                subject.judged_round = at if isinstance(at, int) else subject.judged_round
            return self._ABOUT[name](self, row, subject, event, t)
        return []

    @property
    def not_saved(self) -> str:
        """Why the last checkpoint is not there: the reason of all peers that came to the end, or of
        all that were stopped."""
        done = [peer for peer, row in self.rows.items() if row.state == "done"] or [*self.halted]
        said = [str(self.halted.get(peer, {}).get("not_saved") or "") for peer in done]
        return said[0] if said and all(said) else ""

    # --- a peer's life ----------------------------------------------------------------------------

    def _spawned(self, row: PeerRow, event: Row, t: float) -> list[str]:
        if event.get("joins"):
            self.joins.append(RejoinRecord(row.peer, event.get("incarnation") or 0, t))
            row.state = "starting"
        # it may end before it says anything itself
        row.incarnation = event.get("incarnation") or 0
        waits = [each for each in self.own_restarts if each.peer == row.peer]
        if waits and waits[-1].number is not None and waits[-1].incarnation is None:
            waits[-1].incarnation = row.incarnation
        return []

    def _restarting(self, row: PeerRow, event: Row, t: float) -> list[str]:
        number, wait_s = event.get("number") or 0, event.get("wait_s") or 0.0
        why = str(event.get("why"))
        self.own_restarts.append(RestartRecord(row.peer, row.round, why, number, wait_s))
        of = f"restart {number} of {event.get('of')}"
        return [f"+ {row.peer} is started again in {wait_s:g} s ({of}): {why}"]

    def _restarts_used_up(self, row: PeerRow, event: Row, t: float) -> list[str]:
        why, of = str(event.get("why")), event.get("of") or 0
        self.own_restarts.append(RestartRecord(row.peer, row.round, why, None))
        used = "its restart is" if of == 1 else f"its {of} restarts are"
        return [f"x {row.peer} is not started again, {used} used up: {why}"]

    def _waiting(self, row: PeerRow, event: Row, t: float) -> list[str]:
        if self._is_new(row):
            if self._fresh("waiting", row.peer, t):
                return [f"! {row.peer} has not been let in for {event.get('waited_s')} s"]
        elif isinstance(event.get("missing"), list):
            missing = frozenset(peer for peer in event["missing"] if isinstance(peer, int))
            self._unmet[row.peer] = missing, t
        return []

    def _started(self, row: PeerRow, event: Row, t: float) -> list[str]:
        row.state, row.exit, row.left, row.asked = "here", "", False, False
        row.pause = ""
        row.incarnation, row.pid = event.get("incarnation") or 0, event.get("pid") or 0
        self.unannounced.pop(row.peer, None)
        if row.incarnation > 0 and not self._is_new(row):
            last = self.blow(row.peer)
            self.rejoins.append(RejoinRecord(row.peer, row.incarnation, last.at if last else None))
        return []

    def _ready(self, row: PeerRow, event: Row, t: float) -> list[str]:
        self.ready.add(row.peer)
        row.state = "training"
        return self._begun(event, t)

    def _plan(self, row: PeerRow, event: Row, t: float) -> list[str]:
        """Note the plan of the script, in rounds, as the last peer that has told it has it."""
        steps, every = event.get("steps"), event.get("every")
        if isinstance(steps, int) and 0 < steps < ENDLESS_STEPS:
            self.steps = steps
        folder = str(event.get("folder") or "")
        in_stage = self.stages and re.fullmatch(r"stage-\d+", PurePath(folder).name)
        self.saves_to = str(PurePath(folder).parent) if in_stage else folder
        self.saves_every = every if isinstance(every, int) else None
        return []

    def _metrics(self, row: PeerRow, event: Row, t: float) -> list[str]:
        own = _number(event.get("loss"), None)
        if own is not None:
            row.loss, row.logs_loss = own, True
        row.accuracy = _number(event.get("accuracy"), row.accuracy)
        return []

    def _continued(self, row: PeerRow, event: Row, t: float) -> list[str]:
        row.state = "here"
        return []

    def _recovering(self, row: PeerRow, event: Row, t: float) -> list[str]:
        reason = str(event.get("reason"))
        return [f"~ {row.peer} changes sides: {reason}"] if "branch" in reason else []

    def _restored(self, row: PeerRow, event: Row, t: float) -> list[str]:
        self.unconfirmed.discard(row.peer)
        row.state = "training"
        took = f"took the state of round {event.get('round')} from {event.get('from')}"
        return [f"+ {row.peer} {took}"]

    def _stage_rebuilt(self, row: PeerRow, event: Row, t: float) -> list[str]:
        row.state = "training"
        return [f"+ {lost_stages.rebuilt(event)}"]

    def _stage_lost(self, row: PeerRow, event: Row, t: float) -> list[str]:
        of = event.get("stage")
        fresh = self._fresh("stage_lost", of if isinstance(of, int) else -1, t)
        return [f"x {lost_stages.lost(event)}"] if fresh else []

    def _lingering(self, row: PeerRow, event: Row, t: float) -> list[str]:
        if not self._fresh("lingering", -1, t):
            return []
        lost, most = named(event.get("for") or ()), event.get("at_most_s")
        return [f"~ {row.peer} is done; it waits for {lost} up to {most} s"]

    def _divergence(self, row: PeerRow, event: Row, t: float) -> list[str]:
        entry = divergence.entry_of(event)
        if entry is None:
            return [f"! {divergence.describe(event)}"]
        if len(self.divergences) < DIVERGENCES_MAX:
            self.divergences.append(entry)
        return [f"! {row.peer} {divergence.describe(event)}"]

    def _ends_unconfirmed(self, row: PeerRow, event: Row, t: float) -> list[str]:
        self.unconfirmed.add(row.peer)
        same, other, silent = event.get("same"), event.get("other"), event.get("silent") or "none"
        return [
            (
                f"! {row.peer} ends unconfirmed: {same} hold its last parameters, {other} "
                f"other ones; silent: {silent}"
            )
        ]

    def _halted(self, row: PeerRow, event: Row, t: float) -> list[str]:
        self.halted[row.peer] = dict(event)
        # The node of a trainer that was killed says so after the trainer's end.
        row.state = "done" if row.state != "gone" else "gone"
        # round events are throttled: the last may not have been told
        if isinstance(event.get("round"), int):
            row.step += max(0, event["round"] - row.round)
            self.step = max(self.step, row.step)
            row.round = max(row.round, event["round"])
            self.round = max(self.round, event["round"])
        early = event.get("reason") == "finished" and row.step < (self.steps or 0)
        if not early or row.step in self._early_ends:
            return []
        self._early_ends.add(row.step)
        return [f"~ {row.peer} ended after {row.step} of {self.steps} rounds"]

    # --- what a peer has to say -------------------------------------------------------------------

    def _message(self, row: PeerRow, event: Row, t: float) -> list[str]:
        mark = "~" if event.get("event") == "over" else "!"
        return [f"{mark} {row.peer}: {event.get('message')}"]

    def _notice(self, row: PeerRow, event: Row, t: float) -> list[str]:
        return [f"! {row.peer}: {event.get('message')} ({event.get('hint')})"]

    def _identical_updates(self, row: PeerRow, event: Row, t: float) -> list[str]:
        if self._identical:
            return []
        self._identical = True
        peers = ", ".join(map(str, event.get("peers") or ()))
        return [
            f"! the updates of {peers} are the same to the last bit: they learn from the same "
            "batches, and count as one. Read data through peer.shard(loader), or draw it without "
            "a seed of your own"
        ]

    def _unequal_updates(self, row: PeerRow, event: Row, t: float) -> list[str]:
        if self.unequal_updates is not None:
            return []
        self.unequal_updates = event.get("beyond") or 0.0
        if not event.get("f"):
            return []
        return [
            "! the updates of the same peers are farther out round after round "
            f"({self.unequal_updates:g} deviations beyond chance): they have other data. A rule "
            "without a judge may take them for liars, and liars for them: run with --reference "
            "256; see docs/protection.md"
        ]

    def _fork(self, row: PeerRow, event: Row, t: float) -> list[str]:
        if not self._fresh("fork", row.peer, t):
            return []
        return [f"! {row.peer} sees a fork at round {event.get('round')}"]

    def _events_suppressed(self, row: PeerRow, event: Row, t: float) -> list[str]:
        if not self._fresh("events_suppressed", event.get("about") or 0, t):
            return []
        what = f"{event.get('of')} about {event.get('about')}"
        return [f"! events.jsonl has only some of the events {what}, and counts the others"]

    def _write_failed(self, row: PeerRow, event: Row, t: float) -> list[str]:
        why = str(event.get("why"))
        if why in self._cannot_write:
            return []
        self._cannot_write.add(why)  # each process says so once, and they share the disk
        message, hint = in_words(str(event.get("path")), why)
        return [f"! {message}", f"  {hint}"]

    def _unannounced(self, row: PeerRow, event: Row, t: float) -> list[str]:
        why = self.unannounced[row.peer] = str(event.get("why"))
        told = (
            f"! peers cannot meet: cannot write {event.get('path')} ({why}), where they "
            "look for each other"
        )
        return [told, f"  {ROOM_HINT}"] if self._fresh("unannounced", -1, t) else []

    def _announced(self, row: PeerRow, event: Row, t: float) -> list[str]:
        self.unannounced.pop(row.peer, None)
        return []

    # --- how the rounds go ------------------------------------------------------------------------

    def _reduced_tolerance(self, row: PeerRow, event: Row, t: float) -> list[str]:
        if not self._fresh("reduced_tolerance", -1, t):
            return []
        updates = counted(event.get("updates") or 0, "update")
        f, wanted = event.get("f"), event.get("wanted")
        return [f"! {updates} in round {event.get('round')}: f={f} of {wanted}"]

    def _paused(self, row: PeerRow, event: Row, t: float) -> list[str]:
        if (number := self.outage_at(t)) is not None:
            self.outages[number].paused.add(row.peer)
        at, why = event.get("round"), f" {event['why']}" if event.get("why") else ""
        alive = f"alive are {_alive(event)}, a round needs {event.get('need')}{why}"
        row.pause = f"since round {at}: {alive}"
        # of a peer that was away, or is cut off, the others need not know
        self.paused = self.paused or not isinstance(at, int) or at >= self.round
        if not self._fresh("paused", -1, t):
            return []
        return [f"|| paused at round {at}: {alive}"]

    def _resumed(self, row: PeerRow, event: Row, t: float) -> list[str]:
        self.paused, row.pause = False, ""
        if not self._fresh("resumed", -1, t):
            return []
        return [f"~ going on: alive are {_alive(event)}"]

    def _minority_continues(self, row: PeerRow, event: Row, t: float) -> list[str]:
        if (number := self.outage_at(t)) is not None:
            self.outages[number].alone.update(event.get("alive") or ())
        alone = ", ".join(map(str, event.get("alive") or ()))
        return [
            (
                f"! {alone} of {event.get('of')} go on alone from round "
                f"{event.get('round')}: the others are dead for them"
            )
        ]

    def _lost_round(self, row: PeerRow, event: Row, t: float) -> list[str]:
        lost = event.get("round")
        if not isinstance(lost, int) or lost in self.lost_rounds:
            return []
        self.lost_rounds.add(lost)
        # A run that loses one mostly loses many: the summary counts them.
        if not self._fresh("lost_round", -1, t):
            return []
        return [f"! round {lost} is lost: {event.get('reason')}"]

    def _fault_over(self, row: PeerRow, event: Row, t: float) -> list[str]:
        known = [outage for outage in self.outages if outage.fault == event.get("fault")]
        on = [outage for outage in known if outage.over_at is None]
        for outage in on:
            outage.over_at = t
        if known and not on:
            return []
        return [f"* over: {event.get('fault')} at round {event.get('round')}"]

    # --- what a peer says of another --------------------------------------------------------------

    def _joined(self, row: PeerRow, subject: PeerRow, event: Row, t: float) -> list[str]:
        if subject.state != "elsewhere" or self._is_new(row):
            return []
        return [f"+ {subject.peer} has come"] if self._fresh("joined", subject.peer, t) else []

    def _unskipped(self, row: PeerRow, subject: PeerRow, event: Row, t: float) -> list[str]:
        subject.skipped_by.discard(row.peer)
        return []

    def _alive_again(self, row: PeerRow, subject: PeerRow, event: Row, t: float) -> list[str]:
        subject.skipped_by.discard(row.peer)
        blow = self.blow(subject.peer)
        if blow is not None and t > blow.at:
            blow.returned = True
        return [f"~ {subject.peer} is back"] if self._fresh("alive_again", subject.peer, t) else []

    def _has_left(self, row: PeerRow, subject: PeerRow, event: Row, t: float) -> list[str]:
        subject.left = True
        return []

    def _trusted(self, row: PeerRow, subject: PeerRow, event: Row, t: float) -> list[str]:
        was = subject.suspected
        subject.suspected, subject.quarantined = False, False
        subject.reasons, subject.reasons_round = (), None
        return [f"~ {subject.peer} is trusted again"] if was else []

    def _quarantined(self, row: PeerRow, subject: PeerRow, event: Row, t: float) -> list[str]:
        if subject.quarantined:
            return []
        subject.quarantined = True
        if event.get("reasons"):
            subject.because(event)
        self.quarantines.add(subject.peer)
        trust = f"trust {_trust(event)}{_because(event)}"
        return [f"- {subject.peer} quarantined at round {event.get('round')}: {trust}"]

    def _parole(self, row: PeerRow, subject: PeerRow, event: Row, t: float) -> list[str]:
        if not subject.quarantined:
            return []
        subject.quarantined = False
        return [f"~ {subject.peer} on parole from round {event.get('round')}"]

    def _round(self, row: PeerRow, event: Row, t: float) -> list[str]:
        row.state, row.round, row.pause = "training", event.get("round") or 0, ""
        if not row.logs_loss:  # else its own is meant, not that of all
            row.loss = _number(event.get("loss"), row.loss)
        row.step = event.get("step") or row.round + 1
        row.pace.stepped(t, row.step)
        self._computed(row, event, t)
        if row.round > self.round or event.get("server") is None or self.stages:
            # of a round with a commit all tell the same, or all of a stage
            for peer, score in (event.get("trust") or {}).items():
                if int(peer) in self.rows and isinstance(score, int | float):
                    self.rows[int(peer)].trust = float(score)
        for arrival in (*self.rejoins, *self.joins):
            if arrival.is_of(row.peer, row.incarnation):
                arrival.record_participation(row.round, t)
        told = self._record_participation(row.round, event)
        first = _rounds_of(row.round, event).start
        self.first = first if self.first is None else min(self.first, first)
        if row.round >= self.round:
            self.round, self.server, self.attempt = (
                row.round,
                event.get("server"),
                event.get("attempt") or 0,
            )
            self.paused = False
            if row.step > self.step:
                self.step = row.step
                self.pace.stepped(t, row.step)
            self.loss = _number(event.get("loss"), self.loss)
            alive = event.get("alive")
            self.alive = len(alive) if isinstance(alive, list) else int(alive or 0)
            if self.stages:
                self.alive = sum(each.state == "training" for each in self.rows.values())
        return told

    def has_new_participation(self, event: Row) -> bool:
        """Whether somebody's row ``round`` tells who took part in rounds of which no row that was
        fed has told that."""
        number = event.get("round")
        return (
            isinstance(number, int)
            and self._read_contributors(event) is not None
            and self.participation.lacks_any(_rounds_of(number, event))
        )

    def _read_contributors(self, event: Row) -> tuple[list[Any], int] | None:
        """Return the contributors, and how many peers are alive. None: the row does not tell. In
        gossip rounds, which have no server, each peer has others of its own. In a pipeline all work
        is done by somebody, or the round waits."""
        if self.stages or event.get("server") is None:
            return None
        who, alive = event.get("contributors"), event.get("alive")
        return (who, alive) if isinstance(who, list) and isinstance(alive, int) else None

    def _record_participation(self, round_id: int, event: Row) -> list[str]:
        """Note how many peers are in a round, and in those before it that were like it, as the
        first peer tells that has it. Collective operations are no steps. A peer in quarantine is
        kept out, and lacks nowhere."""
        if (told := self._read_contributors(event)) is None:
            return []
        who, alive = told
        if not who and self._may_be_operation(round_id, event.get("step")):
            return []
        kept_out = sum(
            row.quarantined and row.state != "gone" and row.peer not in who
            for row in self.rows.values()
        )
        rounds = _rounds_of(round_id, event)
        found = self.participation.observe(rounds, len(who), alive - kept_out)
        return [_low_participation(window) for window in found]

    def _may_be_operation(self, round_id: int, step: object) -> bool:
        """Whether a round without contributors, and those before it that were like it, may be
        collective operations: with one there are fewer steps than rounds since the last that
        somebody has told of. Of who tells of a round late nobody knows."""
        behind = isinstance(step, int) and step - self.step < round_id - self.round
        return behind or round_id <= self.round

    def _computed(self, row: PeerRow, event: Row, t: float) -> None:
        """How long it took for its update, if it has contributed one."""
        who, took_us = event.get("contributors"), event.get("took_us")
        if not isinstance(took_us, list) or not isinstance(who, list):
            return
        at = bisect_left(who, row.peer)  # of a commit they are in order
        if at == len(who) or who[at] != row.peer:
            return
        took = _number(took_us[at], None) if at < len(took_us) else None
        if took:
            row.pace.computed(t, took / 1e6)

    def _batch(self, row: PeerRow, event: Row, t: float) -> list[str]:
        """The batch policy, at the start and whenever the number of those who share a round
        changes: as the first tells it."""
        at, policy, n = event.get("round"), event.get("policy"), event.get("peers")
        local, samples, known = event.get("local"), event.get("samples"), self._batch_told
        if (
            not isinstance(at, int)
            or not isinstance(n, int)
            or (known is not None and (at <= known[0] or n == known[1]))
        ):
            return []
        self._batch_told = at, n
        each = (
            f"{counted(n, 'peer')} x {counted(local or 0, 'sample')}"
            if samples == n * (local or 0)
            else f"{counted(n, 'peer')}, at most {counted(local or 0, 'sample')} each"
        )
        since = f" from round {at} on" if known is not None else ""
        return [
            (
                f"= batch{since}: {each}, {samples} a round ({policy}); the learning rate is left "
                "as it is"
            )
        ]

    def _share(self, row: PeerRow, subject: PeerRow, event: Row, t: float) -> list[str]:
        """Note the share, as the first peer tells it."""
        peer = subject.peer
        if self._shares.get(peer, 0) >= (event.get("round") or 0):
            return []
        share = event.get("share") or 1.0
        self._shares[peer] = event.get("round") or 0
        size = {1.0: "whole", 0.5: "half", 0.25: "quarter"}.get(share, f"{share:.2f}")
        # Not the share that was told last: who was out of the roster meanwhile has begun anew
        # with a whole one.
        if share >= (event.get("was") or 1.0):
            why = "it is quick enough for that"
        elif subject.quarantined:
            why = "it is in quarantine"
        elif subject.skipped_by or subject.state in ("gone", "stopped"):
            why = "it is away"
        else:
            why = "it was slower than most, or away"
        return [f"= {peer} gets {size} batches from round {self._shares[peer] + 1} on: {why}"]

    def _low_influence(self, row: PeerRow, subject: PeerRow, event: Row, t: float) -> list[str]:
        """Report a peer once, unless it is suspected or quarantined."""
        if subject.suspected or subject.quarantined or subject.peer in self.low_influence:
            return []
        self.low_influence[subject.peer] = event.get("share") or 0.0
        return low_influence({subject.peer: self.low_influence[subject.peer]})

    def _is_unlike_profile(self, row: PeerRow, subject: PeerRow, event: Row, t: float) -> list[str]:
        """Note the difference from the profile, as the first peer tells it."""
        if subject.peer in self._unlike_profile:
            return []
        self._unlike_profile.add(subject.peer)
        return [f"! {subject.peer} {speeds.unlike_profile(event)}"]

    def _epoch(self, row: PeerRow, event: Row, t: float) -> list[str]:
        """A line for each epoch, or for several together where they are short. One that has used
        samples twice is told at once, and so is the first that has left some."""
        epoch = event.get("epoch")
        if not isinstance(epoch, int) or epoch in self.epochs:
            return []
        self.epochs[epoch] = dict(event)
        at_once = event.get("twice") or (event.get("left") and not self._left_told)
        self._left_told = self._left_told or bool(event.get("left"))
        if t < self._epochs_told_at + self._epochs_every_s and not at_once:
            return []
        if self._epochs_told:
            self._epochs_every_s = min(2 * self._epochs_every_s, EPOCHS_EVERY_S_MAX)
        self._epochs_told_at = t
        return self.untold_epochs()

    def untold_epochs(self) -> list[str]:
        """Return the lines about epochs that no line has told of: also when the run is over."""
        new = list(self.epochs.items())[self._epochs_told :]
        self._epochs_told = len(self.epochs)
        if not new:
            return []
        once, twice, skipped, given_up, rounds = (
            sum(row.get(key) or 0 for _, row in new)
            for key in ("once", "twice", "skipped", "given_up", "rounds")
        )
        left = new[-1][1].get("left") or 0
        more = f"skipped by scripts {skipped}, " * bool(skipped)
        more += f"given up {given_up}, " * bool(given_up)
        which = f"epoch {new[0][0]}" if len(new) == 1 else f"epochs {new[0][0]} to {new[-1][0]}"
        mark = "!" if twice or given_up else "="
        return [
            (
                f"{mark} {which}: samples used once {once}, twice {twice}, {more}left for the "
                f"next {left}, in {counted(rounds, 'round')}"
            )
        ]

    def _fault(self, row: PeerRow, event: Row, t: float) -> list[str]:
        kind, at = str(event.get("kind")), event.get("round") or 0
        seconds = event.get("seconds")
        if kind in ("crash", "restart", "hang"):
            kinds: dict[str, Literal["crash", "restart", "hang"]] = {
                "crash": "crash",
                "restart": "restart",
                "hang": "hang",
            }
            over = t + (seconds or 0.0) + WAKING_S if kind == "hang" else 0.0
            self.blows.append(
                Blow(row.peer, row.incarnation, kinds[kind], at, t, planned=True, until=over)
            )
        if kind == "restart":
            self.restarts[row.peer] = seconds or 0.0
        if kind == "hang":
            self.hangs[row.peer] = seconds or 0.0
            row.state = "stopped"
            return [f"* injected: SIGSTOP peer {row.peer} for {seconds or 0:g} s at round {at}"]
        if kind in ("crash", "restart"):
            serving = (
                ", which serves it"
                if str(event.get("fault", "")).startswith("crash:server")
                else ""
            )
            return [f"* injected: SIGKILL peer {row.peer}{serving} at round {at}"]
        if kind == "leave":
            return [f"* injected: SIGTERM peer {row.peer} at round {at}"]
        if kind in LINK_KINDS:
            fault = str(event.get("fault"))
            if any(
                each.fault == fault and each.over_at is None and t - each.at < QUIET_S
                for each in self.outages
            ):
                return []  # peers that cannot write down who of them tells of it all do
            self.outages.append(PartitionRecord(fault, at, t, sides=sides_of(fault)))
            return [f"* injected: {fault} at round {at}"]
        return [f"* injected: {event.get('fault') or kind} by peer {row.peer}"]

    def _is_new(self, row: PeerRow) -> bool:
        """Whether this life is that of a newcomer."""
        return any(join.is_of(row.peer, row.incarnation) for join in self.joins)

    def _begun(self, event: Row, t: float) -> list[str]:
        present = event.get("present")
        without = sorted(self.unmet(t).difference(present)) if isinstance(present, list) else []
        if not without or not self._fresh("begun", -1, t):
            return []
        return [
            (
                f"! it begins without {', '.join(map(str, without))}: those that come later take "
                "the state of the others"
            )
        ]

    def _begins_anew(self, row: PeerRow, event: Row, t: float) -> list[str]:
        if self.round < 0 or self.holders.anybody:
            return []
        was = self.holders.in_words()
        self.anew.append(
            {"lost_round": self.holders.round, **self.holders.metrics, "wall": event.get("wall")}
        )
        self.holders.begin_anew()
        self.participation.begin_anew()
        self.round, self.first, self.step, self.loss = -1, None, 0, None
        for row in self.rows.values():
            row.round, row.loss, row.accuracy, row.logs_loss = -1, None, None, False
            row.judged_round = -1
        return [
            (
                f"! the swarm begins anew, with fresh weights: all that was learnt until {was} is "
                "lost (--begin-anew)"
            )
        ]

    def outage_at(self, t: float) -> int | None:
        """The last that was on at a moment, or over since not long."""
        on = [
            i
            for i, o in enumerate(self.outages)
            if o.at - SLACK_S <= t <= (t if o.over_at is None else o.over_at + WAKING_S)
        ]
        return on[-1] if on else None

    def blow(self, peer: int) -> Blow | None:
        """The last that hit this peer."""
        return next((blow for blow in reversed(self.blows) if blow.peer == peer), None)

    def _slept(self, peer: int, since: float, until: float) -> bool:
        """Whether it was stopped at any time between two moments."""
        return any(
            other.peer == peer and other.at <= until and since <= other.until
            for other in self.blows
            if other.kind == "hang"
        )

    def _noticed(self, row: PeerRow, subject: PeerRow, event: Row, t: float) -> list[str]:
        name = str(event["event"])
        subject.skipped_by.add(row.peer)
        blow = self.blow(subject.peer)
        if subject.left or subject.state == "done":
            return []
        if blow is not None and (
            blow.returned or t < blow.at - SLACK_S or 0.0 < blow.until < t - NOTICED_S
        ):
            blow = None  # after it, or before it: a peer that was cut off reports late
        # who was stopped itself could not notice anything
        if blow is not None and not self._slept(row.peer, blow.at, t):
            blow.noticed(name, row.peer, t)
        if name == "skip":
            if blow is not None and not blow.told_skip:
                blow.told_skip = True
                return [
                    (
                        f"! {subject.peer} skipped by {row.peer} after {(t - blow.at) * 1000:.0f} "
                        f"ms: {event.get('reason')}"
                    )
                ]
            if blow is not None or self._ending(t) or self._is_through(row, event):
                return []
            if self._fresh("skip", subject.peer, t):
                return [f"! {subject.peer} skipped by {row.peer}: {event.get('reason')}"]
            return []
        return self._died(row, subject, event, blow, t)

    def _died(
        self, row: PeerRow, subject: PeerRow, event: Row, blow: Blow | None, t: float
    ) -> list[str]:
        """Return the lines when a peer holds another for dead. ``blow``: the fault that explains
        it."""
        if blow is not None and not blow.told_dead:
            blow.told_dead = True
            by = f", says {event['by']}" if event.get("by") is not None else ""
            skip = (
                f"; the last of {len(blow.skips)} skipped it after {blow.skip_ms:.0f} ms"
                if blow.skips and blow.skip_ms is not None
                else ""
            )
            return [f"x {subject.peer} dead after {(t - blow.at) * 1000:.0f} ms{by}{skip}"]
        if blow is None and self._apart(row.peer, subject.peer, t):
            if not self._fresh("apart", subject.peer, t):
                return []
            return [f"! {subject.peer} is dead for {row.peer}: the partition is between them"]
        if blow is None and self._fresh("dead", subject.peer, t):
            return [f"x {subject.peer} dead, says {event.get('by', row.peer)}"]
        return []

    def _apart(self, one: int, other: int, t: float) -> bool:
        """Whether a partition is between two peers, or was until just now."""
        number = self.outage_at(t)
        return number is not None and self.outages[number].is_between(one, other)

    def _ending(self, t: float) -> bool:
        """Whether peers close their links because the run is over."""
        ends = [row.get("t") for row in self.halted.values() if not row.get("exit_code")]
        return any(isinstance(end, int | float) and 0 <= t - end < ENDING_S for end in ends)

    def _is_through(self, row: PeerRow, event: Row) -> bool:
        """Whether the peer has had all steps when it tells this: whose link closes then has had
        them, too, and its goodbye may come a moment later."""
        number = event.get("round")
        if self.steps is None or not isinstance(number, int):
            return False
        since = number - (row.round + 1)  # rounds that its events do not tell of yet
        return row.step + since >= self.steps

    def _suspected(self, row: PeerRow, subject: PeerRow, event: Row, t: float) -> list[str]:
        subject.trust = _number(event.get("trust"), subject.trust) or 0.0
        subject.because(event)
        first = {
            "round": event.get("round"),
            "trust": subject.trust,
            "reasons": list(subject.reasons),
        }
        known = self.suspicions.setdefault(subject.peer, first)
        known["trust"] = min(known["trust"], subject.trust)
        if subject.suspected:
            return []
        subject.suspected = True
        return [
            (
                f"? {subject.peer} suspected Byzantine at round {event.get('round')}: trust "
                f"{_trust(event)}{_because(event)}"
            )
        ]

    def _exited(self, row: PeerRow, event: Row, t: float) -> list[str]:
        """The launcher's own row: code or signal, and whether the plan wanted it."""
        number, code = event.get("signal"), event.get("code")
        row.exit, row.asked = str(event.get("how", "")), bool(event.get("stopping"))
        if code == EXIT_ASKED:
            row.state = "gone"
            self.leaves[row.peer] = row.round
            return (
                []
                if event.get("stopping")
                else [f"- {row.peer} has left {at_round(row.round)}: it was asked to"]
            )
        row.state = "done" if code == 0 else "gone"
        last = self.blow(row.peer)
        told = last is not None and last.kind != "hang" and last.incarnation == row.incarnation
        if row.state == "gone" and not event.get("stopping") and not told:
            kind: Literal["killed", "raised"] = "killed" if number is not None else "raised"
            self.blows.append(Blow(row.peer, row.incarnation, kind, row.round, t, planned=False))
            # A script that raised is explained by who reads its log.
            return (
                [f"x {row.peer} {row.exit} {at_round(row.round)}: not in the fault plan"]
                if kind == "killed"
                else []
            )
        return []

    _OWN: ClassVar[Mapping[str, Callable[[RunView, PeerRow, Row, float], list[str]]]] = {
        "announced": _announced,
        "batch": _batch,
        "begun_anew": _begins_anew,
        "cannot_write": _write_failed,
        "continued": _continued,
        "epoch": _epoch,
        "error": _message,
        "events_suppressed": _events_suppressed,
        "exited": _exited,
        "fault": _fault,
        "fault_over": _fault_over,
        "fork": _fork,
        "halted": _halted,
        "identical_updates": _identical_updates,
        "lingering": _lingering,
        "lost_round": _lost_round,
        "metrics": _metrics,
        "minority_continues": _minority_continues,
        "notice": _notice,
        "over": _message,
        "paused": _paused,
        "plan": _plan,
        "divergence": _divergence,
        "ready": _ready,
        "recovering": _recovering,
        "reduced_tolerance": _reduced_tolerance,
        "restarting": _restarting,
        "restarts_used_up": _restarts_used_up,
        "restored": _restored,
        "resumed": _resumed,
        "round": _round,
        "spawned": _spawned,
        "stage_lost": _stage_lost,
        "stage_rebuilt": _stage_rebuilt,
        "started": _started,
        "unannounced": _unannounced,
        "unconfirmed_result": _ends_unconfirmed,
        "unequal_updates": _unequal_updates,
        "waiting": _waiting,
    }
    """By the name of the event."""
    _ABOUT: ClassVar[Mapping[str, Callable[[RunView, PeerRow, PeerRow, Row, float], list[str]]]] = {
        "alive_again": _alive_again,
        "dead": _noticed,
        "joined": _joined,
        "left": _has_left,
        "low_influence": _low_influence,
        "parole": _parole,
        "quarantined": _quarantined,
        "share": _share,
        "skip": _noticed,
        "suspected": _suspected,
        "trusted": _trusted,
        "unlike_profile": _is_unlike_profile,
        "unskip": _unskipped,
    }
    """Handlers of events with a subject, by the name of the event."""

    def _fresh(self, kind: str, peer: int, t: float) -> bool:
        last = self._told.get((kind, peer))
        self._told[kind, peer] = t
        return last is None or t - last >= QUIET_S


def _number(value: Any, otherwise: float | None) -> float | None:
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool)
        else otherwise
    )


def _rounds_of(round_id: int, event: Row) -> range:
    """Return the rounds of a row: a peer leaves out those that were like the next one."""
    since = event.get("since")
    first = since if isinstance(since, int) and 0 <= since <= round_id else round_id
    return range(first, round_id + 1)


def _low_participation(window: LowWindow) -> str:
    nobody = window.without_anybody
    why = (
        f"in {counted(nobody, 'round')} nobody sent an update, as after a batch without "
        "optimizer.step()"
        if nobody
        else "the others were late. Look at gossip top, and raise --round-timeout where steps "
        "or links take long"
    )
    return (
        f"! only {window.mean:.0%} of the peers that are alive took part in the rounds "
        f"{window.first} to {window.last}, on average (less than {BOUND:.0%}): {why}"
    )


def _alive(event: Row) -> str:
    """Peers as ``0-3,5``; older runs have only their number."""
    alive = event.get("alive")
    return numbers(alive) if isinstance(alive, list) else str(alive)


def _trust(event: Mapping[str, Any]) -> str:
    trust = _number(event.get("trust"), None)
    return "?" if trust is None else f"{trust:.2f}"


def _because(event: Mapping[str, Any]) -> str:
    reasons = event.get("reasons") or ()
    return f" ({'; '.join(map(str, reasons[:2]))})" if reasons else ""
