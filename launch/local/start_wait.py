"""Supervision of the start of a run, which waits for a minimum number of peers."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from gossip.errors import NeverStarted
from gossip.launch.guardian import starved_s
from gossip.launch.report import numbers
from gossip.observe import events
from gossip.run import nobody_left

from .awaiting import ReachabilityProbe, WaitingReminder, machine_load, name_log, waiting
from .processes import PeerProcesses
from .running import OngoingRun
from .shutdown import PeersShutdown

if TYPE_CHECKING:
    from gossip.launch.registry import JoinServer

WAITING_EVERY_S = 5.0
# Peers have a start timeout of their own. After this further time, a peer is assumed to hang.
START_SLACK_S = 10.0


class StartWait:
    """Prints for which peers a start waits and why they are missing, and ends a run that cannot
    start."""

    def __init__(
        self,
        run: OngoingRun,
        processes: PeerProcesses,
        shutdown: PeersShutdown,
        join_server: JoinServer | None,
    ) -> None:
        self._run, self._processes, self._shutdown = run, processes, shutdown
        self._join_server = join_server
        self._tries = ReachabilityProbe(run.folder, run.peers, run.view.lives.unannounced)
        self._reminder = WaitingReminder(run.began, WAITING_EVERY_S)
        self._looked_at = run.began
        self._was_left = False

    def close(self) -> None:
        self._tries.close()

    def check(self) -> None:
        """Check whether the run can start. This is called several times a second."""
        now = time.monotonic()
        self._dismiss_early_birds()
        if is_time := now - self._looked_at >= WAITING_EVERY_S:
            self._looked_at = now
            self._end_if_everybody_left()
        self._await_start(now, is_time)

    @property
    def _need(self) -> int:
        """Minimum number of this launcher's peers for a start. For newcomers it is 1, because the
        run has already started."""
        config = self._run.config
        elsewhere = config.peers - len(self._run.peers)
        return 1 if self._run.joins else max(1, config.needed_to_start - elsewhere)

    def _dismiss_early_birds(self) -> None:
        """Stop peers that wait for a start that has become impossible because too many peers have
        failed before their first round."""
        run, view, of = self._run, self._run.view, self._run.config.peers
        failed = [
            peer
            for peer, life in run.outcome.last_lives.items()
            if peer in run.ended and life.code != 0
        ]
        # A peer that has begun can send its state to restarted peers. It may belong to another
        # launcher.
        begun = view.lives.ready and (
            run.config.peers_max > len(run.peers)
            or view.holders.round > 0
            or view.lives.have_begun(run.peers)
        )
        if run.joins or begun or run.stop.is_set() or of - len(failed) >= self._need:
            return
        early = {
            peer: process
            for peer, process in self._processes.running.items()
            if view.rows[peer].state == "here" and peer not in self._shutdown.unneeded
        }
        if early:
            run.print_line(
                f"! stopping {numbers(early)}, as {self._need} of {of} peers are needed; failed "
                f"before the first round: {numbers(failed)}"
            )
        run.outcome.dismissed.update(early)
        for process in early.values():
            self._shutdown.dismiss(process)

    def _end_if_everybody_left(self) -> None:
        """End the run of newcomers that arrive after all other peers have left."""
        run = self._run
        if not run.joins or run.is_over or run.view.lives.have_begun(run.peers):
            return
        # Newcomers of other launchers have no state either, so they do not count. A newcomer that
        # was just admitted may still be missing in the seeds, so check twice.
        server = self._join_server
        coming = server.keeper.stateless() if server is not None else set[int]()
        left = nobody_left(run.folder / "seeds", coming.union(run.peers))
        if left and self._was_left:
            over = "x the run is over: all its peers left before those of this launcher arrived"
            self._shutdown.end("never_started", over)
        self._was_left = left

    def _await_start(self, now: float, is_time: bool) -> None:
        run, lives = self._run, self._run.view.lives
        if lives.here and all(run.view.rows[peer].state == "done" for peer in lives.here):
            return  # Scripts without gossip.init end by themselves, and nobody waits for a peer.
        found = self._join_server.missing if self._join_server is not None else []
        elsewhere = [peer for peer in found if peer not in run.peers]
        unmet = lives.unmet(now).union(elsewhere)
        if lives.ready or run.stop.is_set() or not (lives.missing or unmet):
            return
        if is_time:
            troubles = self._find_why_unmet(unmet)
            if self._reminder.is_due(now, unmet.union(lives.missing)):
                for line in (self._name_awaited(now, elsewhere), *troubles):
                    run.remind(line)
        if self._tries.over:  # The run ended before the peers of this launcher arrived.
            self._shutdown.end(
                "never_started",
                f"x the run is over: peers {self._tries.over} have completed it, and no other "
                "peer is there",
            )
        elif self._processes.first_start is not None and len(lives.here) < self._need:
            waited_s = now - self._processes.first_start
            if waited_s - self._starved_s > run.config.start_timeout_s + START_SLACK_S:
                self._end_never_started(waited_s)

    @property
    def _starved_s(self) -> float:
        """Longest time for which a missing peer has waited for a processor, in seconds. It is
        subtracted, because a starved peer is slow, not stuck."""
        return max(
            [
                starved_s(self._processes.running[peer].pid)
                for peer in self._run.view.lives.missing
                if self._processes.is_here(peer)
            ],
            default=0.0,
        )

    def _name_awaited(self, now: float, elsewhere: Sequence[int]) -> str:
        if self._processes.first_start is None:
            return f"! waiting for the process that forks peers: it imports torch; {machine_load()}"
        waited_s, starved_s = now - self._processes.first_start, self._starved_s
        busy = f", {starved_s:.0f} s of that for a processor" if starved_s >= 1 else ""
        line = waiting(self._run.view, self._run.config, waited_s, now, elsewhere=elsewhere)
        return f"{line}; {machine_load()}{busy}"

    def _find_why_unmet(self, unmet: Collection[int]) -> list[str]:
        join_servers = self._join_server.troubles() if self._join_server is not None else []
        for peer, why in self._tries.found.items():
            self._run.record(events.Unmet(subject=peer, why=why))
        tried = self._tries.troubles(unmet, shared=self._join_server is None)
        return [f"!   {trouble}" for trouble in join_servers + tried]

    def _end_never_started(self, waited_s: float) -> None:
        run, lives = self._run, self._run.view.lives
        # A peer that waits for its restart is not included.
        missing = lives.awaited(time.monotonic())
        error = NeverStarted(self._need, tuple(lives.here), tuple(missing), waited_s)
        run.print_line(f"x {error}")
        run.print_line(f"  hint: {error.hint}{name_log(run.folder, missing[0])}")
        self._shutdown.end("never_started")
