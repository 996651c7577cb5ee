"""Supervises the peers of one run on this machine: starts, wakes, restarts and stops them, and
reports how the run went."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from gossip.config import RunConfig
from gossip.errors import LocalError, NeverStarted
from gossip.launch import signals
from gossip.launch.guardian import starved_s
from gossip.launch.registry import JoinEndpoint
from gossip.launch.report import EXIT_ASKED, RunModel, Screen, at_round, counted, stages_of
from gossip.observe import Event, Row, events, read_event
from gossip.run import (
    Appender,
    JsonLines,
    Logbook,
    WriteFailures,
    announce_end,
    dump_stacks_on_signal,
    nobody_left,
    shown,
    whole,
)

from . import lost_state
from .awaiting import (
    INSECURE,
    INSECURE_EVERY_S,
    ReachabilityProbe,
    WaitingReminder,
    machine_load,
    name_log,
    waiting,
)
from .drilling import DrillServer
from .failures import explain
from .join_service import JoinService
from .outcome import RunOutcome, Stop
from .pauses import StoppedProcesses
from .peer_process import Guardian, PeerCommand, PeerListener, PeerProcess, ProcessLife
from .peer_setup import peer_environment
from .program import Program
from .restarts import RestartCounter, died_by_itself
from .warm import ForkServerGone, WarmStart, is_possible

WAITING_EVERY_S = 5.0
TICK_S = 0.1
STOP_GRACE_S = 30.0  # from the first Ctrl-C to the end of peers that have not left.
START_AGAIN_S = (0.5, 1.0, 2.0, 4.0)  # after each failure to start a process
START_SLACK_S = 10.0  # Peers have their own start timeout; this limit is for those that hang.
TOO_LATE = (NeverStarted.exit_code, 5)  # exit codes of a peer that finds no other peer


class Supervisor:
    """Runs ``command`` as every peer of a resolved config.

    Args:
        config: Resolved; its run folder exists.
        command: Program and arguments, the same for every peer.
        screen: Output for the user.
        environment: Environment that peers inherit; None: ``os.environ``.
        newcomers: Ids and first incarnations of peers that join a run of another launcher.
            None: this launcher begins the run.
        share: Ids and first incarnations of the first peers that run here; other launchers
            start the rest. None: all.
        endpoint: Endpoint of the join server. None: a join server only if there is room for
            newcomers.
        files: Part of the names of files that a launcher appends to, if several launchers share
            the run's folder.
    """

    # Each parameter is used by some launcher.
    def __init__(  # noqa: PLR0913
        self,
        config: RunConfig,
        command: Sequence[str],
        screen: Screen,
        environment: Mapping[str, str] | None = None,
        newcomers: Mapping[int, int] | None = None,
        share: Mapping[int, int] | None = None,
        endpoint: JoinEndpoint | None = None,
        files: str = "",
    ) -> None:
        self.config, self.command, self.screen = config, list(command), screen
        self.folder = Path(config.run_dir).resolve()
        self.plan = config.plan
        self.joins, self._files = newcomers is not None, files
        given = newcomers if newcomers is not None else share
        self.peers = dict(given) if given is not None else dict.fromkeys(range(config.peers), 0)
        self.view = RunModel(self.peers, self.plan, config.steps_per_round, stages_of(config))
        self.outcome = RunOutcome(config, self.view, joins=self.joins)
        self.troubles = WriteFailures(self._report_write_failure)
        self._environment = peer_environment(
            self.folder, os.environ if environment is None else environment
        )
        self.token = secrets.token_hex(16)
        self._processes: dict[int, PeerProcess] = {}
        self._first_start: float | None = None
        self._was_left = False
        self._stopped_processes = StoppedProcesses(self._on_woken)
        self._stop = asyncio.Event()
        self._explained = False
        self._ended: set[int] = set()  # peers that will not be restarted
        self._late: set[int] = set()
        # one of several launchers in this folder
        alone = min(self.peers) if self.joins or files else None
        self._desk = DrillServer(self, alone) if config.drills else None
        self._tries = ReachabilityProbe(self.folder, self.peers, self.view.lives.unannounced)
        self._restarts = RestartCounter(config.restarts)
        self._lost: set[int] = set()  # ids that another launcher has, too
        has_join_server = endpoint is not None or config.room > config.peers
        listens = self._environment.get("GOSSIP_LISTEN", "")
        self.join_service = (
            JoinService(self, endpoint or JoinEndpoint(host=listens)) if has_join_server else None
        )

    async def run(self) -> RunOutcome:
        """Run until the last process of the last peer has ended."""
        dump_stacks_on_signal("launcher")
        began = time.monotonic()
        self._events = JsonLines(
            self.folder / f"events{self._files}.jsonl", "events", self.troubles
        )
        self._logbook = Logbook(
            self.folder / f"logbook{self._files}.md", self.config.name, self.troubles
        )
        self._guardian = Guardian(self.token)
        warm = self.config.warm and is_possible(self.command)
        self._warm = WarmStart(self._environment, self.token, self._print_line) if warm else None
        with signals.forward_signals(self._on_signal):
            await self._lead(began)
        return self.outcome

    async def _lead(self, began: float) -> None:
        """Run all lives of all peers, and write the records when the last one has ended."""
        watcher = asyncio.create_task(self._watch(began))
        try:
            if self._desk is not None:
                await self._desk.open()
                self._guardian.remove_socket(self._desk.path)
            if self.join_service is not None:
                await self.join_service.open()
            which = (
                f"peers {', '.join(map(str, self.peers))}"
                if self.joins
                else counted(len(self.peers), "peer")
            )
            self._logbook.note(f"starting {which}: {' '.join(self.command)}")
            await self._all_lives(watcher)
        finally:
            watcher.cancel()
            self._tries.close()
            if self._desk is not None:
                self._desk.close()
            self._stopped_processes.close()
            for process in self._processes.values():
                # Processes are left only after an error above.
                process.send_all(signal.SIGKILL)
            self._guardian.close()
            if self.join_service is not None:
                await self.join_service.close()
            if self._warm is not None:
                self._warm.close()
            self.outcome.wall_s = time.monotonic() - began
            progress = self.view.progress
            planned = progress.steps is not None and progress.step >= progress.steps
            for line in self.view.epochs.at_end(planned):
                self._remind(line)
            self.screen.close(self.view)
            self.record(events.LauncherEnded(exit_code=self.outcome.exit_code, joins=self.joins))
            self._logbook.note(
                f"ended after {self.outcome.wall_s:.1f} s {at_round(self.view.progress.round)}, "
                f"exit code {self.outcome.exit_code}"
            )
            self._logbook.close()
            self._events.close()
            self.outcome.lacking.update(self.troubles.lacking)

    # --- one peer ---------------------------------------------------------------------------------

    async def _all_lives(self, watcher: asyncio.Task[None]) -> None:
        """Run all peers until the last process has ended. Raises: The error that ended the
        watcher."""
        watcher.add_done_callback(self._end_without_watcher)
        await asyncio.gather(
            *(self._life_of(peer, incarnation) for peer, incarnation in self.peers.items())
        )
        if watcher.done():
            watcher.result()

    async def _life_of(self, peer: int, incarnation: int) -> None:
        """Run all lives of one peer."""
        while not self._stop.is_set():
            process = await self._begin_life(peer, incarnation)
            if process is None:
                break
            self._dismiss_latecomers()  # The others may have ended during the start of this one.
            try:
                life = await process.wait_gone()
            finally:
                self._guardian.forget(process)
                self._processes.pop(peer, None)
            if peer in self._lost:
                await self._begin_anew(peer)
                return
            self.outcome.lives.append(life)
            if not await self._starts_again(peer, life):
                break
            if self._others_are_done:
                self._print_line(f"! peer {peer} is not started again: the others are done")
                break
            # Its node may have been restarted before.
            incarnation = max(incarnation, self.view.rows[peer].incarnation) + 1
            self._print_line(f"+ starting peer {peer} again, incarnation {incarnation}")
        self._ended.add(peer)
        seeds = self.folder / "seeds"  # Otherwise peers that are done would wait for its restart.
        self.troubles.try_to(seeds, lambda: announce_end(seeds, peer, incarnation))
        self._dismiss_latecomers()

    def lose(self, peer: int) -> None:
        """Replace an own id that a join server, which ours could not reach, has assigned to another
        peer."""
        process = self._processes.get(peer)
        if process is not None:
            self._lost.add(peer)
            self._print_line(
                f"! id {peer} was assigned twice while join servers could not reach each "
                "other: our peer gets another"
            )
            process.send_all(signal.SIGKILL)  # A goodbye would be attributed to the other peer.

    async def _begin_anew(self, peer: int) -> None:
        """Start a newcomer that has lost its id again, under another id."""
        self._ended.add(peer)
        new = (
            await self.join_service.another_id(peer)
            if self.join_service is not None and not self._stop.is_set()
            else None
        )
        if new is not None:
            self.peers[new[0]] = new[1]
            await self._life_of(*new)

    def _dismiss_latecomers(self) -> None:
        """Stop restarted peers that came too late: all others are done, and no peer is left to send
        them a state."""
        if not self.outcome.finished or any(
            self.view.rows[peer].state == "training" for peer in self._processes
        ):
            return
        for peer, process in self._processes.items():
            row = self.view.rows[peer]
            # Until the peer has announced this life, the row is about the previous one.
            waits = row.state in ("starting", "here") or (row.state == "gone" and process.running)
            if process.incarnation > self.peers[peer] and waits and peer not in self._late:
                self._print_line(f"! peer {peer} came back too late: the others are done")
                self._dismiss(process)

    def _dismiss(self, process: PeerProcess) -> None:
        """Ask a peer that is not needed to leave. Kill it after ``STOP_GRACE_S``: its script may
        ignore SIGTERM."""
        self._late.add(process.peer)
        process.send_trainer(signal.SIGTERM)
        asyncio.get_running_loop().call_later(STOP_GRACE_S, self._kill_dismissed, process)

    def _kill_dismissed(self, process: PeerProcess) -> None:
        if self._processes.get(process.peer) is process and process.running:
            self._print_line(f"! killing peer {process.peer}: not gone after {STOP_GRACE_S:.0f} s")
            process.send_all(signal.SIGKILL)

    def _dismiss_early_birds(self) -> None:
        """Stop peers that wait for a start that has become impossible, because too many peers have
        failed."""
        failed = sorted(
            [
                peer
                for peer, life in self.outcome.last_lives.items()
                if peer in self._ended and life.code != 0
            ]
        )
        if (
            self.joins
            or self.view.lives.ready
            or self._stop.is_set()
            or self.config.peers - len(failed) >= self._need
        ):
            return
        waiting = [
            peer
            for peer in self._processes
            if self.view.rows[peer].state == "here" and peer not in self._late
        ]
        if waiting:
            who, of = ", ".join(map(str, failed)), f"{self._need} of {self.config.peers} are needed"
            self._print_line(
                f"! stopping {', '.join(map(str, waiting))}: peers {who} have failed before the "
                f"start, and {of}"
            )
        for peer in waiting:
            self.outcome.dismissed.add(peer)
            self._dismiss(self._processes[peer])

    @property
    def _need(self) -> int:
        """Number of own peers that a start needs. A newcomer finds the others running."""
        elsewhere = self.config.peers - len(self.peers)
        return 1 if self.joins else max(1, self.config.needed_to_start - elsewhere)

    async def _begin_life(self, peer: int, incarnation: int) -> PeerProcess | None:
        """Start a process of a peer. None: the run was stopped before, or this machine can start no
        more processes."""
        pauses = iter(START_AGAIN_S)
        while not self._stop.is_set():
            warm = (
                self._warm
                if self._warm is not None and await self._warm.ready_unless(self._stop)
                else None
            )
            if self._stop.is_set():
                break
            try:
                return self._start(peer, incarnation, warm)
            except ForkServerGone:
                continue  # It is not ready for a while: start without it.
            except OSError as error:
                # Processes, descriptors or memory are exhausted: others may end and free some.
                pause_s, now = next(pauses, None), time.monotonic()
                if pause_s is None:
                    life = ProcessLife(
                        peer,
                        incarnation,
                        LocalError.exit_code,
                        None,
                        (f"it cannot be started: {error}",),
                        now,
                        now,
                    )
                    self.outcome.lives.append(life)
                    self._on_exit(life)
                    break
                self._print_line(
                    f"! peer {peer} cannot be started: {error}; again in {pause_s:g} s"
                )
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), pause_s)
        return None

    def _start(self, peer: int, incarnation: int, warm: WarmStart | None) -> PeerProcess:
        folder = self.folder / f"peer-{peer}"
        self.troubles.try_to(folder, lambda: folder.mkdir(exist_ok=True))
        process = PeerProcess(
            peer,
            incarnation,
            PeerCommand(self.command, self._environment, self.token, warm),
            Appender(folder / "out.log", self.troubles),
            PeerListener(
                lambda text, err: self.screen.output(peer, text, err),
                self._on_row,
                self._on_exit,
            ),
        )
        self._processes[peer] = process
        if self._first_start is None:
            self._first_start = time.monotonic()
        self._guardian.watch(process)
        joins = (self.joins and incarnation == self.peers[peer]) or None
        self.record(
            events.Spawned(peer=peer, pid=process.pid, incarnation=incarnation, joins=joins)
        )
        return process

    async def _starts_again(self, peer: int, life: ProcessLife) -> bool:
        """Wait until a peer is due for its restart, planned or after a failure. False: it is not
        restarted."""
        planned_s = self.view.failures.restarts.pop(peer, None)
        if self._is_planned(life):
            after_s = planned_s
        else:
            after_s = self._back_off_s(life)
        if after_s is None:
            return False
        lost_state.end_if_lost(self)
        wait_s = max(0.0, life.ended_at + after_s - time.monotonic())
        try:
            await asyncio.wait_for(self._stop.wait(), wait_s)
        except TimeoutError:
            return not lost_state.end_if_lost(self)
        return False

    def _back_off_s(self, life: ProcessLife) -> float | None:
        """Return the seconds to wait before a failed peer is restarted. None: it is not restarted,
        and the reason is recorded."""
        peer = life.peer
        if not self.config.restarts or self._stop.is_set() or peer in self._late:
            return None
        if not died_by_itself(life, self.view.lives.halted.get(peer)):
            return None
        if self._others_are_done:
            self._print_line(f"! peer {peer} is not started again: the others are done")
            return None
        restart = self._restarts.next_restart(life)
        if restart == "used up":
            self.record(events.RestartsUsedUp(peer=peer, of=self.config.restarts, why=life.how))
            return None
        of, number, wait_s = self.config.restarts, restart.number, restart.wait_s
        self.record(events.Restarting(peer=peer, number=number, of=of, wait_s=wait_s, why=life.how))
        return wait_s

    @property
    def _others_are_done(self) -> bool:
        """Whether all but one peer have ended for good, and the training is complete."""
        return bool(self.outcome.finished) and len(self._ended) == len(self.peers) - 1

    def _is_planned(self, life: ProcessLife) -> bool:
        """Whether a planned fault or a drill has killed the process."""
        blow = self.view.failures.blow(life.peer)
        struck = blow is not None and blow.kind in ("crash", "restart") and blow.at >= life.began_at
        return struck and life.signal == signal.SIGKILL

    def _on_exit(self, life: ProcessLife) -> None:
        blow, planned = self.view.failures.blow(life.peer), self._is_planned(life)
        if blow is not None and blow.planned and life.code in TOO_LATE and self.outcome.finished:
            # The plan kept it down until the others were done.
            self._late.add(life.peer)
            halted = self.view.lives.halted.get(life.peer)
            self._print_line(
                f"! peer {life.peer} came back too late: "
                f"{life.how if halted is None else halted.reason}"
            )
        stopping = self._stop.is_set() or life.peer in self._late or life.peer in self._lost
        exited = events.Exited(
            peer=life.peer,
            planned=planned,
            stopping=stopping,
            incarnation=life.incarnation,
            code=life.code,
            signal=life.signal,
            how=life.how,
        )
        self.record(exited, life.ended_at)
        self._logbook.note(
            f"peer {life.peer} incarnation {life.incarnation} ended "
            f"{at_round(self.view.progress.round)}: {life.how}"
        )
        if life.code in (0, EXIT_ASKED) or planned or stopping:
            return
        if life.code is not None:
            going_on = sum(process.running for process in self._processes.values())
            lines = explain(
                life,
                going_on,
                len(self.outcome.finished),
                self.folder / f"peer-{life.peer}",
                self._shadowing(),
            )
            # The first failure is usually the cause of the others.
            for line in lines[:1] if self._explained else lines:
                self.screen.print_line(line)
            self._explained = True

    def _shadowing(self) -> dict[str, str]:
        """Return files of the user that Python imports in place of modules that the script
        needs."""
        if not is_possible(self.command):
            return {}
        return Program.of(self.command[2:]).shadowing({*sys.stdlib_module_names, *sys.modules})

    def _on_row(self, row: Row) -> None:
        """Apply a checked row of a peer."""
        before = set(self.view.failures.hangs)
        self._events.write(row)
        event = read_event(row)
        self._apply(event)
        for peer in set(self.view.failures.hangs) - before:
            self._wake_later(peer, self.view.failures.hangs.pop(peer))
        if isinstance(event, events.RecordIncomplete) and isinstance(event.files, dict):
            self.outcome.lacking.update(
                {path: whole(lines) or 0 for path, lines in event.files.items()}
            )

    def _wake_later(self, peer: int, after_s: float) -> None:
        if (process := self._processes.get(peer)) is not None:
            self._stopped_processes.wake_later(process, after_s)

    def _on_woken(self, peer: int, slept_s: float) -> None:
        self.record(events.Continued(peer=peer))
        self._print_line(f"+ SIGCONT peer {peer} after {slept_s:.1f} s")

    # --- drills -----------------------------------------------------------------------------------

    @property
    def is_training(self) -> bool:
        """Whether the run can be disturbed."""
        # a run that the peers have joined
        begun = bool(self.view.lives.ready) or any(
            self.view.rows[peer].state == "training" for peer in self.peers
        )
        return begun and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether the run is ending or has ended."""
        return self._stop.is_set() or len(self._ended) == len(self.peers)

    def is_here(self, peer: int) -> bool:
        """Whether the peer has a process that has not ended."""
        process = self._processes.get(peer)
        return process is not None and process.running

    def kill_peer(self, after_s: float | None, peer: int, fault: str) -> None:
        """Send SIGKILL to all processes of a peer. It is restarted after ``after_s``; None:
        never."""
        kind = "crash" if after_s is None else "restart"
        self._record_fault(kind, peer, fault, after_s)
        self._processes[peer].send_all(signal.SIGKILL)

    def _record_fault(self, kind: str, peer: int, fault: str, seconds: float | None = None) -> None:
        at = self.view.progress.round
        self.record(events.Fault(peer=peer, kind=kind, round=at, fault=fault, seconds=seconds))

    def stop_peer(self, for_s: float, peer: int, fault: str) -> None:
        """Send SIGSTOP to all processes of a peer, and SIGCONT after ``for_s``."""
        self._record_fault("hang", peer, fault, for_s)
        self.view.failures.hangs.pop(peer, None)
        self._processes[peer].send_all(signal.SIGSTOP)
        self._wake_later(peer, for_s)

    def ask_peer_to_leave(self, peer: int, fault: str) -> None:
        """Send SIGTERM to the trainer of a peer, as a scheduler does at a preemption. It is not
        restarted."""
        self._record_fault("leave", peer, fault)
        self._processes[peer].send_trainer(signal.SIGTERM)
        self._processes[peer].send_all(signal.SIGCONT)  # A stopped process could not leave.

    def wake_all(self) -> list[int]:
        """Send SIGCONT to all stopped peers now. Return the peers."""
        return self._stopped_processes.wake_all()

    # --- all peers --------------------------------------------------------------------------------

    async def _watch(self, began: float) -> None:
        """Redraw the screen, print which peers are missing, and end a run that does not start."""
        looked, warned = began, -INSECURE_EVERY_S
        reminder = WaitingReminder(began, WAITING_EVERY_S)
        while True:
            if self.config.insecure and time.monotonic() - warned >= INSECURE_EVERY_S:
                warned = time.monotonic()
                self._remind(INSECURE)
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self.screen.tick(self.view)
            if self._guardian.revive():
                self._print_line("! the guardian process was killed; it is started again")
            self._dismiss_early_birds()
            if self.view.holders.in_vain:
                lost_state.end_if_lost(self)
            if is_time := now - looked >= WAITING_EVERY_S:
                looked = now
                self._end_if_everybody_left()
            self._await_start(now, reminder, is_time)

    def _await_start(self, now: float, reminder: WaitingReminder, is_time: bool) -> None:
        elsewhere = self.join_service.missing if self.join_service is not None else []
        unmet = self.view.lives.unmet(now).union(elsewhere)
        if self.view.lives.ready or self._stop.is_set() or not (self.view.lives.missing or unmet):
            return
        if is_time:
            troubles = self._find_why_unmet(unmet)
            if reminder.is_due(now, unmet.union(self.view.lives.missing)):
                for line in (self._name_awaited(now, elsewhere), *troubles):
                    self._remind(line)
        if self._tries.over:  # The run ended before the own peers arrived.
            self.end(
                "never_started",
                f"x the run is over: {self._tries.over} have completed it, and nobody else is "
                "there",
            )
        elif self._first_start is not None and len(self.view.lives.here) < self._need:
            waited_s = now - self._first_start
            if waited_s - self._starved_s > self.config.start_timeout_s + START_SLACK_S:
                self._end_never_started(waited_s)

    @property
    def _starved_s(self) -> float:
        """Longest time, in seconds, that a missing peer has waited for a processor. This time does
        not count: a starved peer is slow, not stuck."""
        return max(
            [
                starved_s(self._processes[peer].pid)
                for peer in self.view.lives.missing
                if self.is_here(peer)
            ],
            default=0.0,
        )

    def _name_awaited(self, now: float, elsewhere: Sequence[int]) -> str:
        if self._first_start is None:
            return f"! waiting for the process that forks peers: it imports torch; {machine_load()}"
        waited_s, starved_s = now - self._first_start, self._starved_s
        busy = f", {starved_s:.0f} s of that for a processor" if starved_s >= 1 else ""
        line = waiting(self.view, self.config, waited_s, now, elsewhere=elsewhere)
        return f"{line}; {machine_load()}{busy}"

    def _end_without_watcher(self, watcher: asyncio.Task[None]) -> None:
        """End the run if the watcher breaks: without it no missing peer and no end of the others is
        noticed."""
        if watcher.cancelled():
            return
        self._stop.set()
        for process in self._processes.values():
            process.send_all(signal.SIGKILL)

    def _end_if_everybody_left(self) -> None:
        """End a run that all others have left before the own newcomers arrived."""
        if not self.joins or self.is_over or self.view.lives.have_begun(self.peers):
            return
        # Newcomers of other launchers have no state either. A newcomer that was just admitted is in
        # the seeds at the next check.
        coming = self.join_service.stateless if self.join_service is not None else set[int]()
        left = nobody_left(self.folder / "seeds", coming.union(self.peers))
        if left and self._was_left:
            over = "x the run is over: everybody has left while ours were on their way"
            self.end("never_started", over)
        self._was_left = left

    def _find_why_unmet(self, unmet: Collection[int]) -> list[str]:
        join_servers = self.join_service.troubles() if self.join_service is not None else []
        for peer, why in self._tries.found.items():
            self.record(events.Unmet(subject=peer, why=why))
        tried = self._tries.troubles(unmet, shared=self.join_service is None)
        return [f"!   {trouble}" for trouble in join_servers + tried]

    def _end_never_started(self, waited_s: float) -> None:
        # A peer that is being restarted is not missing here.
        missing = self.view.lives.awaited(time.monotonic())
        error = NeverStarted(self._need, tuple(self.view.lives.here), tuple(missing), waited_s)
        self._print_line(f"x {error}")
        self._print_line(f"  hint: {error.hint}{name_log(self.folder, missing[0])}")
        self.end("never_started")

    def _on_signal(self, number: int) -> None:
        if number == signals.AT_ONCE:
            if self.outcome.stopped == "":
                self.end("terminate")
            self.kill("stopping now")
        elif self.outcome.stopped == "":
            interrupted = number == signal.SIGINT
            again = " (Ctrl-C again: stop now)" if interrupted else ""
            self.end(
                "interrupt" if interrupted else "terminate", f"stopping after this round{again}"
            )
        elif self.outcome.stopped in ("interrupt", "terminate"):
            self.kill("stopping now")
        else:
            self.kill("")

    def end(self, why: Stop, say: str = "", grace_s: float | None = None) -> None:
        """Ask every trainer to leave after its round, and kill those that have not left after
        ``grace_s``."""
        grace_s = STOP_GRACE_S if grace_s is None else grace_s
        if len(self._ended) == len(self.peers):
            return  # All peers have ended; only the records are left to write.
        self.outcome.stopped = why
        self._stop.set()
        if say:
            self._print_line(say)
        self.record(events.Stopping(reason=why))
        # Ctrl-C raises KeyboardInterrupt in every script, as in one that runs alone.
        number = signal.SIGINT if why == "interrupt" else signal.SIGTERM
        for process in self._processes.values():
            process.send_trainer(number)
            process.send_all(signal.SIGCONT)  # A stopped process could not leave.
        asyncio.get_running_loop().call_later(grace_s, self.kill, f"not gone after {grace_s:.0f} s")

    def kill(self, say: str) -> None:
        """Kill all processes that are left."""
        left = {peer: process.members() for peer, process in self._processes.items()}
        if not any(left.values()):
            return
        if say:
            named = ", ".join(
                f"{peer} (pids {' '.join(map(str, pids))})" for peer, pids in left.items() if pids
            )
            self._print_line(f"{say}: killing peers {named}")
        if self.outcome.stopped == "interrupt":
            self.outcome.stopped = "killed"
        for process in self._processes.values():
            process.send_all(signal.SIGKILL)

    def record(self, event: Event, t: float | None = None) -> None:
        """Write an event of the launcher. ``t``: its time; None: now."""
        now = time.monotonic()
        t = now if t is None else t
        row = event.to_row(t, time.time() - (now - t))
        self._events.write(row)
        self._apply(read_event(row))

    def _apply(self, event: Event) -> None:
        for line in self.view.apply(event):
            # one line, also if the text of a peer contains line breaks
            self._print_line(shown(line))

    def _report_write_failure(self, path: str, why: str) -> None:
        self.record(events.CannotWrite(path=path, why=why))

    def _remind(self, text: str) -> None:
        """Print a line about a lasting condition; it is printed repeatedly."""
        self._print_line(text)

    def _print_line(self, text: str) -> None:
        self.screen.print_line(text)
        if text[:1] in "x+?-*=":
            self._logbook.note(text)
