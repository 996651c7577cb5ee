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
STOP_GRACE_S = 30.0  # after the first Ctrl-C; then those that did not leave are killed
START_AGAIN_S = (0.5, 1.0, 2.0, 4.0)  # after each failure to make a process
START_SLACK_S = 10.0  # peers count their start timeout themselves; this is for those that cannot
TOO_LATE = (NeverStarted.exit_code, 5)  # what a peer ends with that finds nobody any more


class Supervisor:
    """Runs ``command`` as every peer of a resolved config.

    Args:
        config: Resolved; its run folder exists.
        command: Program and arguments, the same for every peer.
        screen: Where words go.
        environment: What peers inherit; ``os.environ`` when None.
        newcomers: To a run that others have begun: which ids to start, and with which incarnations.
            None: begins the run.
        share: Of the peers that begin it: which to start here, and with which incarnations; others
            start the rest. None: all.
        endpoint: Of its join server. None: it has one only where somebody may join.
        files: Goes into the names of the files that a launcher appends to,
            where several share the run's folder.
    """

    # Every launcher names those that it needs.
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
        self._ended: set[int] = set()  # peers that will not come back
        self._late: set[int] = set()
        # of several launchers in this folder
        alone = min(self.peers) if self.joins or files else None
        self._desk = DrillServer(self, alone) if config.drills else None
        self._tries = ReachabilityProbe(self.folder, self.peers, self.view.unannounced)
        self._restarts = RestartCounter(config.restarts)
        self._lost: set[int] = set()  # ids that turned out to be somebody else's
        has_join_server = endpoint is not None or config.room > config.peers
        listens = self._environment.get("GOSSIP_LISTEN", "")
        self.join_service = (
            JoinService(self, endpoint or JoinEndpoint(host=listens)) if has_join_server else None
        )

    async def run(self) -> RunOutcome:
        """Until the last process of the last peer is gone."""
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
        """All lives of all peers, and what is told when the last one has gone."""
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
                # only when something above broke: otherwise all are gone
                process.send_all(signal.SIGKILL)
            self._guardian.close()
            if self.join_service is not None:
                await self.join_service.close()
            if self._warm is not None:
                self._warm.close()
            self.outcome.wall_s = time.monotonic() - began
            for line in self.view.epochs.rest():
                self._remind(line)
            self.screen.close(self.view)
            self.record(events.LauncherEnded(exit_code=self.outcome.exit_code, joins=self.joins))
            self._logbook.note(
                f"ended after {self.outcome.wall_s:.1f} s {at_round(self.view.round)}, exit code "
                f"{self.outcome.exit_code}"
            )
            self._logbook.close()
            self._events.close()
            self.outcome.lacking.update(self.troubles.lacking)

    # --- one peer ---------------------------------------------------------------------------------

    async def _all_lives(self, watcher: asyncio.Task[None]) -> None:
        """Until the last process is gone. Raises: what has broken the watcher."""
        watcher.add_done_callback(self._end_without_watcher)
        await asyncio.gather(
            *(self._life_of(peer, incarnation) for peer, incarnation in self.peers.items())
        )
        if watcher.done():
            watcher.result()

    async def _life_of(self, peer: int, incarnation: int) -> None:
        """All the lives of one peer."""
        while not self._stop.is_set():
            process = await self._begin_life(peer, incarnation)
            if process is None:
                break
            self._dismiss_latecomers()  # the others may have ended while this one was started
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
            # its node may have been started more than once
            incarnation = max(incarnation, self.view.rows[peer].incarnation) + 1
            self._print_line(f"+ starting peer {peer} again, incarnation {incarnation}")
        self._ended.add(peer)
        seeds = self.folder / "seeds"  # or those who are done would wait for it to come back
        self.troubles.try_to(seeds, lambda: announce_end(seeds, peer, incarnation))
        self._dismiss_latecomers()

    def lose(self, peer: int) -> None:
        """An id of ours was given away a second time, by a join server that ours could not reach,
        and the other has it now."""
        process = self._processes.get(peer)
        if process is not None:
            self._lost.add(peer)
            self._print_line(
                f"! id {peer} was assigned twice while join servers could not reach each "
                "other: our peer gets another"
            )
            process.send_all(signal.SIGKILL)  # a goodbye would be taken for that of the other

    async def _begin_anew(self, peer: int) -> None:
        """A newcomer that has lost its id comes again."""
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
        """Stops peers that were started again and came too late: all others are done, and nobody is
        left to take them in."""
        if not self.outcome.finished or any(
            self.view.rows[peer].state == "training" for peer in self._processes
        ):
            return
        for peer, process in self._processes.items():
            row = self.view.rows[peer]
            # What the row says is of its last life until it has announced this one.
            waits = row.state in ("starting", "here") or (row.state == "gone" and process.running)
            if process.incarnation > self.peers[peer] and waits and peer not in self._late:
                self._print_line(f"! peer {peer} came back too late: the others are done")
                self._dismiss(process)

    def _dismiss(self, process: PeerProcess) -> None:
        """Asks a peer to leave that nobody needs. It is killed where it has not left in time: its
        script may ignore SIGTERM."""
        self._late.add(process.peer)
        process.send_trainer(signal.SIGTERM)
        asyncio.get_running_loop().call_later(STOP_GRACE_S, self._kill_dismissed, process)

    def _kill_dismissed(self, process: PeerProcess) -> None:
        if self._processes.get(process.peer) is process and process.running:
            self._print_line(f"! killing peer {process.peer}: not gone after {STOP_GRACE_S:.0f} s")
            process.send_all(signal.SIGKILL)

    def _dismiss_early_birds(self) -> None:
        """Stops those who wait for a start that cannot come any more,
        because too many have failed before it."""
        failed = sorted(
            [
                peer
                for peer, life in self.outcome.last_lives.items()
                if peer in self._ended and life.code != 0
            ]
        )
        if (
            self.joins
            or self.view.ready
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
        """Peers of ours that it takes to start. Who joins finds the others there."""
        elsewhere = self.config.peers - len(self.peers)
        return 1 if self.joins else max(1, self.config.needed_to_start - elsewhere)

    async def _begin_life(self, peer: int, incarnation: int) -> PeerProcess | None:
        """None: the run was stopped before there was one to stop,
        or this machine starts no more processes."""
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
                continue  # it is not ready for a while: started without it
            except OSError as error:
                # no more processes, descriptors, memory: others may end and give back what it takes
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
        """Waits until a peer is started again that the plan has killed, or that has died by itself;
        false when it is not."""
        planned_s = self.view.restarts.pop(peer, None)
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
        """How long to wait before a peer that the plan has not killed is started again; None: it is
        not, and why is told."""
        peer = life.peer
        if not self.config.restarts or self._stop.is_set() or peer in self._late:
            return None
        if not died_by_itself(life, self.view.halted.get(peer)):
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
        """Whether all but one will not come back, and the training has come to its end."""
        return bool(self.outcome.finished) and len(self._ended) == len(self.peers) - 1

    def _is_planned(self, life: ProcessLife) -> bool:
        """Whether a fault of the plan, or a drill, has killed it."""
        blow = self.view.blow(life.peer)
        struck = blow is not None and blow.kind in ("crash", "restart") and blow.at >= life.began_at
        return struck and life.signal == signal.SIGKILL

    def _on_exit(self, life: ProcessLife) -> None:
        blow, planned = self.view.blow(life.peer), self._is_planned(life)
        if blow is not None and blow.planned and life.code in TOO_LATE and self.outcome.finished:
            # The plan kept it away until the others were done.
            self._late.add(life.peer)
            halted = self.view.halted.get(life.peer)
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
            f"peer {life.peer} incarnation {life.incarnation} ended {at_round(self.view.round)}: "
            f"{life.how}"
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
            # the first failure is mostly the cause of the others
            for line in lines[:1] if self._explained else lines:
                self.screen.print_line(line)
            self._explained = True

    def _shadowing(self) -> dict[str, str]:
        """Files of the user that the script imports in place of modules that it needs."""
        if not is_possible(self.command):
            return {}
        return Program.of(self.command[2:]).shadowing({*sys.stdlib_module_names, *sys.modules})

    def _on_row(self, row: Row) -> None:
        """Take a checked row of a peer."""
        before = set(self.view.hangs)
        self._events.write(row)
        event = read_event(row)
        self._apply(event)
        for peer in set(self.view.hangs) - before:
            self._wake_later(peer, self.view.hangs.pop(peer))
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
        """Whether there is something to disturb."""
        # newcomers
        begun = bool(self.view.ready) or any(
            self.view.rows[peer].state == "training" for peer in self.peers
        )
        return begun and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether it ends, or has."""
        return self._stop.is_set() or len(self._ended) == len(self.peers)

    def is_here(self, peer: int) -> bool:
        """Whether the peer has a process that has not ended."""
        process = self._processes.get(peer)
        return process is not None and process.running

    def kill_peer(self, after_s: float | None, peer: int, fault: str) -> None:
        """SIGKILL to all its processes. It is started again ``after_s`` later, or never."""
        kind = "crash" if after_s is None else "restart"
        self._record_fault(kind, peer, fault, after_s)
        self._processes[peer].send_all(signal.SIGKILL)

    def _record_fault(self, kind: str, peer: int, fault: str, seconds: float | None = None) -> None:
        at = self.view.round
        self.record(events.Fault(peer=peer, kind=kind, round=at, fault=fault, seconds=seconds))

    def stop_peer(self, for_s: float, peer: int, fault: str) -> None:
        """SIGSTOP to all its processes, SIGCONT ``for_s`` later."""
        self._record_fault("hang", peer, fault, for_s)
        self.view.hangs.pop(peer, None)
        self._processes[peer].send_all(signal.SIGSTOP)
        self._wake_later(peer, for_s)

    def ask_peer_to_leave(self, peer: int, fault: str) -> None:
        """SIGTERM to its trainer, as a scheduler does that wants its machine back.
        It is not started again."""
        self._record_fault("leave", peer, fault)
        self._processes[peer].send_trainer(signal.SIGTERM)
        self._processes[peer].send_all(signal.SIGCONT)  # whoever sleeps could not leave

    def wake_all(self) -> list[int]:
        """SIGCONT at once to whoever would be woken later. Returns whom."""
        return self._stopped_processes.wake_all()

    # --- all peers --------------------------------------------------------------------------------

    async def _watch(self, began: float) -> None:
        """Redraws, says whom we wait for, and gives up on a run that does not start."""
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
        unmet = self.view.unmet(now).union(elsewhere)
        if self.view.ready or self._stop.is_set() or not (self.view.missing or unmet):
            return
        if is_time:
            troubles = self._find_why_unmet(unmet)
            if reminder.is_due(now, unmet.union(self.view.missing)):
                for line in (self._name_awaited(now, elsewhere), *troubles):
                    self._remind(line)
        if self._tries.over:  # they have ended while ours were on their way here
            self.end(
                "never_started",
                f"x the run is over: {self._tries.over} have completed it, and nobody else is "
                "there",
            )
        elif self._first_start is not None and len(self.view.here) < self._need:
            waited_s = now - self._first_start
            if waited_s - self._starved_s > self.config.start_timeout_s + START_SLACK_S:
                self._end_never_started(waited_s)

    @property
    def _starved_s(self) -> float:
        """For how long a peer that is missing has waited for a processor. Such a peer is slow, and
        not stuck: that time does not count."""
        return max(
            [
                starved_s(self._processes[peer].pid)
                for peer in self.view.missing
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
        """End the run when the watcher breaks: nobody else gives up on peers that do not come, or
        sees that everybody has left."""
        if watcher.cancelled():
            return
        self._stop.set()
        for process in self._processes.values():
            process.send_all(signal.SIGKILL)

    def _end_if_everybody_left(self) -> None:
        """Newcomers may be on their way to a run that ends meanwhile."""
        if not self.joins or self.is_over or self.view.have_begun(self.peers):
            return
        # Nor do newcomers of other launchers have anything to give. Who has just been let in is
        # known to all at the next look.
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
        missing = self.view.awaited(time.monotonic())  # one that starts again is not missing here
        error = NeverStarted(self._need, tuple(self.view.here), tuple(missing), waited_s)
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
        """Asks every trainer to leave after its round, and kills those that have not left
        ``grace_s`` later."""
        grace_s = STOP_GRACE_S if grace_s is None else grace_s
        if len(self._ended) == len(self.peers):
            return  # everybody is done; we are only writing it down
        self.outcome.stopped = why
        self._stop.set()
        if say:
            self._print_line(say)
        self.record(events.Stopping(reason=why))
        # Ctrl-C is a KeyboardInterrupt in every script, as it is in one that runs alone.
        number = signal.SIGINT if why == "interrupt" else signal.SIGTERM
        for process in self._processes.values():
            process.send_trainer(number)
            process.send_all(signal.SIGCONT)  # whoever sleeps could not leave
        asyncio.get_running_loop().call_later(grace_s, self.kill, f"not gone after {grace_s:.0f} s")

    def kill(self, say: str) -> None:
        """Kills whoever is left."""
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
        row = event.to_row(time.monotonic() if t is None else t, time.time())
        self._events.write(row)
        self._apply(read_event(row))

    def _apply(self, event: Event) -> None:
        for line in self.view.apply(event):
            self._print_line(shown(line))  # one line, whatever ends of lines a peer's words have

    def _report_write_failure(self, path: str, why: str) -> None:
        self.record(events.CannotWrite(path=path, why=why))

    def _remind(self, text: str) -> None:
        """Print a line about something that goes on for a while, again and again."""
        self._print_line(text)

    def _print_line(self, text: str) -> None:
        self.screen.print_line(text)
        if text[:1] in "x+?-*=":
            self._logbook.note(text)
