"""Failures in a run, injected or not: deaths and pauses of processes, network faults, silent peers,
lost stages, and replicas that differ. The record of a failure has its detection and its end."""

from __future__ import annotations

from collections import deque

from gossip.faults import LINK_KINDS
from gossip.observe import PEERS_MAX, events
from gossip.run import in_words, text_of

from . import divergence
from .happenings import (
    EXIT_ASKED,
    SLACK_S,
    Blow,
    Injection,
    PartitionRecord,
    Silence,
    StageLoss,
    sides_of,
)
from .model_state import ModelState
from .peer_row import PeerRow
from .progress import RoundProgress
from .sentences import EVER, QUIET_S
from .stages import describe_rebuilt_stage, describe_unlike_profile
from .words import at_round, counted

WAKING_S = 1.0  # Time that a stopped peer needs to catch up, in seconds.
# If a death is noticed later than this after a hang, in seconds, it has another cause.
NOTICED_S = 10.0
DIVERGENCES_MAX = 100


class Failures:
    """Failures of a run, in the order in which they were reported.

    Attributes:
        injected: Faults that were injected, also by a drill.
        errors: First error of each part, by its name. A planned attack is a part.
        blows: Faults that hit a process, and unplanned deaths.
        silences: Periods in which other peers received nothing from a peer, for any reason.
        restarts, hangs: Seconds until the launcher must start or wake a peer that a fault has
            killed or stopped, by peer. The launcher removes the entries that it has handled.
    """

    def __init__(self, state: ModelState, progress: RoundProgress) -> None:
        self._state, self._progress = state, progress
        self.injected: list[Injection] = []
        self.errors: dict[str, events.Error] = {}
        self.blows: list[Blow] = []
        self.outages: list[PartitionRecord] = []
        self.silences: list[Silence] = []
        self.lost_stages: list[StageLoss] = []
        self.divergences: list[events.Divergence] = []
        self.restarts: dict[int, float] = {}
        self.hangs: dict[int, float] = {}
        self._silent: dict[int, Silence] = {}  # silences that are not over, by peer
        # Recent reports that a peer is dead or skipped, with the reporting peer. Some of them
        # arrive before the launcher sees the death.
        self._notices: deque[tuple[events.Dead | events.Skip, int]] = deque(maxlen=PEERS_MAX)

    def blow(self, peer: int) -> Blow | None:
        """Return the last fault or death that hit the process of a peer."""
        return next((blow for blow in reversed(self.blows) if blow.peer == peer), None)

    def outage_at(self, t: float) -> PartitionRecord | None:
        """Return the last outage that was active at ``t``, or shortly before it."""
        on = [
            each
            for each in self.outages
            if each.at - SLACK_S <= t <= (t if each.over_at is None else each.over_at + WAKING_S)
        ]
        return on[-1] if on else None

    # --- injected faults --------------------------------------------------------------------------

    def _on_error(self, event: events.Error) -> None:
        if event.part is not None:
            self.errors.setdefault(event.part, event)

    def _on_fault(self, event: events.Fault, row: PeerRow) -> list[str]:
        kind, at = str(event.kind), event.round or 0
        fault, seconds = event.fault or "", event.seconds or 0.0
        injection = (fault, kind, row.peer, event.round, event.t)
        if kind not in LINK_KINDS:
            self.injected.append(Injection(*injection))
        if kind in ("crash", "restart", "hang"):
            over = event.t + seconds + WAKING_S if kind == "hang" else 0.0
            self.blows.append(
                Blow(row.peer, row.incarnation, kind, at, event.t, True, fault, until=over)
            )
        if kind == "restart":
            self.restarts[row.peer] = seconds
        if kind == "hang":
            self.hangs[row.peer] = seconds
            row.state = "stopped"
            return [f"* injected: SIGSTOP peer {row.peer} for {seconds:g} s at round {at}"]
        if kind in ("crash", "restart"):
            serving = ", which serves it" * fault.startswith("crash:server")
            return [f"* injected: SIGKILL peer {row.peer}{serving} at round {at}"]
        if kind == "leave":
            return [f"* injected: SIGTERM peer {row.peer} at round {at}"]
        if kind not in LINK_KINDS:
            return [f"* injected: {fault or kind} by peer {row.peer}"]
        if any(
            each.fault == fault and each.over_at is None and event.t - each.at < QUIET_S
            for each in self.outages
        ):
            # Several peers report the same fault if they could not record which of them reports it.
            return []
        self.outages.append(PartitionRecord(*injection, sides=sides_of(fault)))
        self.injected.append(self.outages[-1])
        return [f"* injected: {fault} at round {at}"]

    def _on_fault_over(self, event: events.FaultOver, row: PeerRow) -> list[str]:
        known = [each for each in self.injected if each.fault == event.fault]
        on = [each for each in known if each.over_at is None]
        for each in on:
            each.over_at = event.t
        is_old = known and not on and isinstance(known[0], PartitionRecord)
        return [] if is_old else [f"* over: {event.fault} at round {event.round}"]

    def _on_continued(self, event: events.Continued, row: PeerRow) -> None:
        row.state = "here"
        if (blow := self.blow(row.peer)) is not None:
            blow.woken_at = blow.woken_at or event.t

    # --- deaths and silences ----------------------------------------------------------------------

    def _on_exited(self, event: events.Exited, row: PeerRow) -> list[str]:
        """Record an unplanned death."""
        last = self.blow(row.peer)
        told = last is not None and last.kind != "hang" and last.incarnation == row.incarnation
        if event.code in (0, EXIT_ASKED) or event.stopping or told:
            return []
        kind = "raised" if event.signal is None else "killed"
        blow = Blow(row.peer, row.incarnation, kind, row.round, event.t, False)
        for notice, by in self._notices:
            if notice.subject == row.peer:
                blow.noticed(notice, by)
        self.blows.append(blow)
        if kind == "killed":
            # The line below replaces that of a first skip. A later line about the death also counts
            # the skips.
            blow.told_skip, blow.told_dead = True, bool(blow.noticed_by)
            over = ("gone", "done", "elsewhere")
            others = sum(each.state not in over for each in self._state.rows.values())
            return [
                f"x peer {row.peer} {row.exit} {at_round(row.round)}: not in the fault plan; still "
                f"running: {counted(others, 'peer')}"
            ]
        halted = self._state.halted.get(row.peer)
        if halted is not None and halted.reason == "raised":
            blow.raised = halted
        return []  # The launcher prints the error.

    def _slept(self, peer: int, since: float, until: float) -> bool:
        """Whether a fault had stopped the peer at any time between ``since`` and ``until``."""
        return any(
            other.peer == peer and other.at <= until and since <= other.until
            for other in self.blows
            if other.kind == "hang"
        )

    def _on_noticed(
        self, event: events.Dead | events.Skip, row: PeerRow, subject: PeerRow
    ) -> list[str]:
        self._record_silence(event, subject)
        subject.skipped_by.add(row.peer)
        self._notices.append((event, row.peer))
        blow = self.blow(subject.peer)
        for each in self.outages:
            if each.affects(event.t) and (blow is None or not each.at <= blow.at <= event.t):
                each.skipped.setdefault(subject.peer, event.t)
        if isinstance(event, events.Skip):
            subject.figures.skipped_for = text_of(event.reason) or ""
        if subject.left or subject.state == "done":
            return []
        if blow is not None and (
            blow.returned or event.t < blow.at - SLACK_S or 0.0 < blow.until < event.t - NOTICED_S
        ):
            blow = None  # The event has another cause: a peer that was cut off reports late.
        # A stopped peer notices a death late, so it is not counted.
        if blow is not None and not self._slept(row.peer, blow.at, event.t):
            blow.noticed(event, row.peer)
        if not isinstance(event, events.Skip):
            return self._died(row, subject, event, blow)
        line = f"! peer {subject.peer} skipped by peer {row.peer}"
        if blow is not None and not blow.told_skip:
            blow.told_skip = True
            return [f"{line} after {(event.t - blow.at) * 1000:.0f} ms: {event.reason}"]
        is_known = blow is not None or event.reason == "dead" or self._state.is_ending(event.t)
        if is_known or self._is_through(row, event):
            return []
        return self._state.speaker.once(event, subject.peer, f"{line}: {event.reason}")

    def _record_silence(self, event: events.Dead | events.Skip, subject: PeerRow) -> None:
        if not self._state.details:
            return
        silence = self._silent.get(event.subject)
        # A peer that has ended no longer reports that the subject is back.
        if silence is None or (silence.dead is None and not subject.skipped_by):
            silence = self._silent[event.subject] = Silence(event.subject, event)
            self.silences.append(silence)
        if isinstance(event, events.Dead) and silence.dead is None:
            silence.dead = event

    def _died(
        self, row: PeerRow, subject: PeerRow, event: events.Dead, blow: Blow | None
    ) -> list[str]:
        """Return the lines about a report that a peer is dead. ``blow``: the fault that explains
        the death, if any."""
        accuser = row.peer if event.by is None else event.by
        if accuser == subject.peer and subject.state != "elsewhere":
            return []  # The peer has declared its own death, and its node has reported why.
        declared = f"x peer {subject.peer} declared dead by peer {accuser}"
        if blow is not None and not blow.told_dead:
            blow.told_dead = True
            skip = (
                f"; {counted(len(blow.skips), 'peer')} skipped it within {blow.skip_ms:.0f} ms"
                if blow.skips and blow.skip_ms is not None
                else ""
            )
            return [f"{declared} after {event.t - blow.at:.1f} s{skip}"]
        outage = self.outage_at(event.t)
        if blow is None and outage is not None and outage.is_between(row.peer, subject.peer):
            line = (
                f"! peer {subject.peer} is dead for peer {row.peer}: the partition is between them"
            )
            return self._state.speaker.once(event, ("apart", subject.peer), line)
        return [] if blow is not None else self._state.speaker.once(event, subject.peer, declared)

    def _is_through(self, row: PeerRow, event: events.Skip) -> bool:
        """Whether the reporting peer had completed all steps at the event. The peer that it skips
        has then completed them, too, and its announcement of the end may arrive after its link
        closes."""
        steps = self._progress.steps
        if steps is None or event.round is None:
            return False
        since = event.round - (row.round + 1)  # rounds that the peer's events have not reported yet
        return row.step + since >= steps

    def _on_unskipped(
        self, event: events.Unskip | events.AliveAgain, row: PeerRow, subject: PeerRow
    ) -> None:
        subject.skipped_by.discard(row.peer)
        silence = self._silent.get(subject.peer)
        is_back = isinstance(event, events.AliveAgain)
        if silence is not None and (not subject.skipped_by or (is_back and silence.dead)):
            self._silent.pop(subject.peer).back_at = event.t
        blow = self.blow(subject.peer)
        if is_back and blow is not None and event.t > blow.at:
            blow.returned = True

    # --- network ----------------------------------------------------------------------------------

    def _on_paused(self, event: events.Paused, row: PeerRow) -> None:
        if (outage := self.outage_at(event.t)) is not None:
            outage.paused.add(row.peer)

    def _on_minority_continues(self, event: events.MinorityContinues, row: PeerRow) -> None:
        if (outage := self.outage_at(event.t)) is not None:
            outage.alone.update(event.alive or ())

    def _on_came_back(self, event: events.Resumed | events.Restored, row: PeerRow) -> None:
        for each in self.outages:
            each.record_return(event.t)

    # --- stages, replicas, files ------------------------------------------------------------------

    def _on_stage_changed(
        self, event: events.StageLost | events.StageBack | events.StageRebuilt, row: PeerRow
    ) -> list[str] | None:
        lost = [each for each in self.lost_stages if each.stage == event.stage]
        last = lost[-1] if lost else None
        if isinstance(event, events.StageRebuilt):
            row.state = "training"
            if last is None or last.rebuilt is not None:
                last = StageLoss(event.stage, event.t, event.round)
                self.lost_stages.append(last)
            last.rebuilt, last.is_away = event, False
            return [f"+ {describe_rebuilt_stage(event)}"]
        if isinstance(event, events.StageBack):
            if last is not None:
                last.is_away = False
        elif last is None or last.rebuilt is not None:
            self.lost_stages.append(StageLoss(event.stage, event.t, event.round, is_away=True))
        elif not last.is_away:  # If the loss is recorded, this is the report of another peer.
            last.at, last.round, last.is_away = event.t, event.round, True
        return None

    def _on_is_unlike_profile(
        self, event: events.UnlikeProfile, row: PeerRow, subject: PeerRow
    ) -> list[str]:
        """Return the line about a peer that is slower or faster than its profile. Only the first
        report counts."""
        line = f"! peer {subject.peer} {describe_unlike_profile(event)}"
        return [line] if self._state.speaker.is_due(event, subject.peer, EVER) else []

    def _on_divergence(self, event: events.Divergence, row: PeerRow) -> list[str]:
        if not event.peers_differ:
            return [f"! {divergence.describe(event)}"]
        if len(self.divergences) < DIVERGENCES_MAX:
            self.divergences.append(event)
        return [f"! peer {row.peer} {divergence.describe(event)}"]

    def _on_write_failed(self, event: events.CannotWrite, row: PeerRow) -> list[str]:
        why = str(event.why)
        message, hint = in_words(str(event.path), why)
        # Every process reports a full disk once, but the processes share the disk, so one line is
        # enough.
        is_due = self._state.speaker.is_due(event, why, EVER)
        return [f"! {message}", f"  {hint}"] if is_due else []
