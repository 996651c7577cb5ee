"""Starts, admissions, returns and ends of the peers of a run."""

from __future__ import annotations

from collections.abc import Iterable

from gossip.observe import events

from .failures import Failures
from .happenings import EXIT_ASKED, RejoinRecord, RestartRecord
from .model_state import ModelState
from .peer_row import PeerRow
from .progress import RoundProgress
from .words import at_round, numbers

UNMET_S = 10.0  # Peers report every 5 s for which peers they wait.


class Lives:
    """Starts and ends of all incarnations of the peers.

    Attributes:
        spawned: Peers that a launcher has started.
        ready: Peers that began to train. ``began_at``: time at which the first of them began; None
            if none did.
        met: Peers that have met others, at the start or later. ``notices``: last notice of a peer
            about another one, by the pair. ``unreached``: result of the last connection to the
            address of a peer, by peer.
        joins: Arrivals of newcomers. ``rejoins``: returns of peers that had ended.
        leaves: Last round of each peer that left on request before the end.
        own_restarts: Restarts after unplanned deaths.
        halted: Last report of each peer about its end.
        unconfirmed: Peers that ended without a confirmation that other peers have the same
            parameters.
        unannounced: Reason why a peer could not announce its address, by peer.
        launcher_ends: Events about the ends of launchers.
    """

    def __init__(self, state: ModelState, progress: RoundProgress, failures: Failures) -> None:
        self._state, self._progress, self._failures = state, progress, failures
        self.spawned: set[int] = set()
        self.ready: set[int] = set()
        self.began_at: float | None = None
        self.met: set[int] = set()
        self.notices: dict[frozenset[int | None], str] = {}
        self.unreached: dict[int | None, str] = {}
        self.joins: list[RejoinRecord] = []
        self.rejoins: list[RejoinRecord] = []
        self.leaves: dict[int, int] = {}
        self.own_restarts: list[RestartRecord] = []
        self.halted = state.halted
        self.unconfirmed: set[int] = set()
        self.unannounced: dict[int, str] = {}
        self.launcher_ends: list[events.LauncherEnded] = []
        self._early_ends = {-1}  # numbers of steps after which peers ended early
        # peers for which a peer waits at the start, and the time of its last report, by waiting
        # peer
        self._unmet: dict[int, tuple[frozenset[int], float]] = {}

    def have_begun(self, peers: Iterable[int]) -> bool:
        """Whether one of the peers trains, or has finished."""
        return any(self._state.rows[peer].state in ("training", "done") for peer in peers)

    @property
    def here(self) -> list[int]:
        away = ("starting", "gone", "elsewhere")
        return [row.peer for row in self._state.rows.values() if row.state not in away]

    @property
    def missing(self) -> list[int]:
        return [row.peer for row in self._state.rows.values() if row.state == "starting"]

    def unmet(self, now: float) -> set[int]:
        """Return the peers for which others wait at the start: they have not started, have not
        finished ``prepare``, or have no connection."""
        return {
            peer
            for lacks, said_at in self._unmet.values()
            if now - said_at < UNMET_S
            for peer in lacks
        }

    def awaited(self, now: float) -> list[int]:
        """Return all peers for which the start waits, as far as reported."""
        return sorted(self.unmet(now).union(self.missing))

    @property
    def not_saved(self) -> str:
        """Reason why the last checkpoint was not written; "" if it was written. It counts only if
        all finished peers report one or, if no peer finished, all halted peers do."""
        done = [p for p, row in self._state.rows.items() if row.state == "done"] or [*self.halted]
        said = [end.not_saved for end in map(self.halted.get, done) if end is not None]
        return said[0] or "" if said and all(said) and len(said) == len(done) else ""

    @property
    def over_at(self) -> float:
        """Time at which the first peer ended without an error; infinity if none has. Later ends
        need no explanation."""
        ends = [end.t for end in self.halted.values() if end.reason != "raised"]
        return min(ends, default=float("inf"))

    def _is_new(self, row: PeerRow) -> bool:
        """Whether this incarnation of the peer joined during the run."""
        return any(join.is_of(row.peer, row.incarnation) for join in self.joins)

    # --- start ------------------------------------------------------------------------------------

    def _on_spawned(self, event: events.Spawned, row: PeerRow) -> None:
        self.spawned.add(row.peer)
        row.figures.started_at = event.t
        if event.joins:
            self.joins.append(RejoinRecord(row.peer, event.incarnation or 0, event.t))
            row.state = "starting"
        elif event.incarnation and (blow := self._failures.blow(row.peer)) is not None:
            blow.started_at = blow.started_at or event.t
        row.host = event.host or row.host
        # Set here, because the peer may end before its own first event.
        row.incarnation = event.incarnation or 0
        waits = [each for each in self.own_restarts if each.peer == row.peer]
        if waits and waits[-1].number is not None and waits[-1].incarnation is None:
            waits[-1].incarnation = row.incarnation

    def _on_waiting(self, event: events.Waiting, row: PeerRow) -> list[str]:
        if self._is_new(row):
            line = f"! peer {row.peer} has waited {event.waited_s} s to be admitted"
            return self._state.speaker.once(event, row.peer, line)
        if event.missing is not None:
            self._unmet[row.peer] = frozenset(event.missing), event.t
        return []

    def _on_started(self, event: events.Started, row: PeerRow) -> None:
        row.state, row.exit, row.left, row.asked = "here", "", False, False
        row.figures.started_at = event.t
        row.pause, row.receiving = "", False
        row.incarnation, row.pid = event.incarnation or 0, event.trainer_pid
        row.host = event.host or row.host
        self.unannounced.pop(row.peer, None)
        if row.incarnation > 0 and not self._is_new(row):
            last = self._failures.blow(row.peer)
            since = last.at if last else None
            self.rejoins.append(RejoinRecord(row.peer, row.incarnation, since, event.t))

    def _on_unannounced(self, event: events.Unannounced, row: PeerRow) -> None:
        self.unannounced[row.peer] = str(event.why)

    def _on_announced(self, event: events.Announced, row: PeerRow) -> None:
        self.unannounced.pop(row.peer, None)

    def _on_ready(self, event: events.Ready, row: PeerRow) -> list[str]:
        self.ready.add(row.peer)
        self.began_at = event.t if self.began_at is None else min(self.began_at, event.t)
        row.state, row.figures.trained_at = "training", event.t
        present = event.present
        if present != [row.peer]:
            self.met.add(row.peer)
        without = set() if present is None else self.unmet(event.t).difference(present)
        line = (
            f"! it begins without {numbers(without)}: peers that arrive later receive the state of "
            "the others"
        )
        return self._state.speaker.once(event, None, line) if without else []

    def _on_joined(self, event: events.Joined, row: PeerRow, subject: PeerRow) -> list[str]:
        if subject.state != "elsewhere" or self._is_new(row):
            return []
        line = f"+ peer {subject.peer} has joined"
        return self._state.speaker.once(event, subject.peer, line)

    def _on_notice(self, event: events.Notice) -> None:
        about = frozenset((event.peer, event.about))
        self.notices[about] = f"{event.message} ({event.hint})"

    def _on_unmet(self, event: events.Unmet) -> None:
        self.unreached[event.subject] = str(event.why)

    # --- state ------------------------------------------------------------------------------------

    def _on_recovering(self, event: events.Recovering, row: PeerRow) -> list[str]:
        row.receiving = True
        reason = str(event.reason)
        return [f"~ peer {row.peer} changes sides: {reason}"] if "branch" in reason else []

    def _on_received_none(
        self, event: events.KeptOwnState | events.NoStateFound, row: PeerRow
    ) -> None:
        row.receiving = False

    def _on_restored(self, event: events.Restored, row: PeerRow) -> list[str] | None:
        self.unconfirmed.discard(row.peer)
        self.met.add(row.peer)
        row.state, row.receiving, row.figures.trained_at = "training", False, event.t
        if event.round != 0:
            return None
        # A transfer in round 0 means that the initial state of the peer differed.
        return [
            f"+ peer {row.peer} re-synced from peer {event.from_} at round 0: its initial state "
            "differed (torch.manual_seed(0) before the model)"
        ]

    def _on_round(self, event: events.Round, row: PeerRow) -> None:
        row.figures.trained_at = event.t
        if row.peer not in self.met and (
            (event.alive_count or 0) > 1 or {*(event.contributors or ())} - {row.peer}
        ):
            self.met.add(row.peer)
        for arrival in (*self.rejoins, *self.joins):
            if arrival.is_of(row.peer, row.incarnation):
                arrival.record_participation(row.round, event.t)

    def _on_used(self, event: events.Usage, row: PeerRow) -> None:
        self._state.machines.record_usage(row.host, event)
        row.figures.record_usage(event)

    # --- end --------------------------------------------------------------------------------------

    def _on_ends_unconfirmed(self, event: events.UnconfirmedResult, row: PeerRow) -> None:
        self.unconfirmed.add(row.peer)

    def _on_has_left(self, event: events.Left, row: PeerRow, subject: PeerRow) -> None:
        subject.left = True

    def _on_halted(self, event: events.Halted, row: PeerRow) -> list[str]:
        self.halted[row.peer] = event
        row.figures.record_traffic(event.traffic or {})
        # After its trainer was killed, a node reports this later than the launcher reports the end.
        row.state = "done" if row.state != "gone" else "gone"
        if event.round is not None:
            self._progress.finish(row, event.round)
        steps = self._progress.steps
        early = event.reason == "finished" and row.step < (steps or 0)
        if not early or row.step in self._early_ends:
            return []
        self._early_ends.add(row.step)
        return [f"~ peer {row.peer} ended after {row.step} of {steps} rounds"]

    def _on_exited(self, event: events.Exited, row: PeerRow) -> list[str]:
        """Record the end of a peer's process, as its launcher reports it: exit code or signal, and
        whether a stop was requested."""
        row.exit, row.asked, row.receiving = event.how or "", bool(event.stopping), False
        row.pid = None
        row.figures.exited_at = event.t
        row.state = "done" if event.code == 0 else "gone"
        for other in self._state.rows.values():
            other.skipped_by.discard(row.peer)
        if event.code != EXIT_ASKED:
            return []
        self.leaves[row.peer] = row.round
        left = f"- peer {row.peer} has left {at_round(row.round)}, on request"
        return [] if event.stopping else [left]

    def _on_restarting(self, event: events.Restarting, row: PeerRow) -> list[str]:
        number, wait_s = event.number or 0, event.wait_s or 0.0
        why = str(event.why)
        self.own_restarts.append(RestartRecord(row.peer, row.round, why, number, wait_s))
        of = f"restart {number} of {event.of}"
        return [f"+ peer {row.peer} is restarted in {wait_s:g} s ({of}): {why}"]

    def _on_restarts_used_up(self, event: events.RestartsUsedUp, row: PeerRow) -> list[str]:
        why, of = str(event.why), event.of or 0
        self.own_restarts.append(RestartRecord(row.peer, row.round, why, None))
        used = "its restart is" if of == 1 else f"its {of} restarts are"
        return [f"x peer {row.peer} is not restarted, {used} used up: {why}"]

    def _on_launcher_ended(self, event: events.LauncherEnded) -> None:
        self.launcher_ends.append(event)
