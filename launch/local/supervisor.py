"""Supervisor of the peers of one run on this machine, from the first start to the last end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gossip.config import RunConfig
from gossip.errors import LocalError, NeverStarted
from gossip.launch import signals
from gossip.launch.registry import JoinEndpoint
from gossip.launch.report import EXIT_ASKED, Screen, at_round, counted
from gossip.observe import events
from gossip.run import SWARM_KEY, announce_end, dump_stacks_on_signal

from . import lost_state
from .drilling import DrillServer
from .failures import explain
from .invitation import Invitation
from .outcome import RunOutcome
from .peer_process import ProcessLife
from .peer_setup import peer_environment
from .processes import PeerProcesses
from .program import Program
from .restarts import RestartCounter, died_by_itself
from .running import OngoingRun
from .shutdown import PeersShutdown
from .start_wait import StartWait

if TYPE_CHECKING:
    from gossip.launch.registry import JoinServer

TICK_S = 0.1
WITHOUT_ERROR = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
"""Signals from others, about which a process writes nothing."""
TOO_LATE = (NeverStarted.exit_code, 5)  # exit codes of a peer that found no other peer


class Supervisor:
    """Runs the peers of a run, each of which executes ``program``.

    Args:
        config: Resolved settings. The run's folder exists.
        program: The same for every peer.
        screen: Output for the user.
        environment: Variables of the peers, in addition to those of this process.
        newcomers: First incarnations of peers that join a run of another launcher, by id; None if
            this launcher begins the run.
        share: First incarnations of the initial peers that run here, by id. Other launchers start
            the others. None means all initial peers.
        endpoint: Endpoint of the join server. If it is None, there is a join server only if the run
            has room for newcomers.
        files: Suffix in the names of this launcher's files, if several launchers share the run's
            folder.
        relays: Whether a launcher on another machine prints the events and the missing peers.
    """

    # Every kind of launcher needs other parameters.
    def __init__(  # noqa: PLR0913
        self,
        config: RunConfig,
        program: Program,
        screen: Screen,
        environment: Mapping[str, str] | None = None,
        newcomers: Mapping[int, int] | None = None,
        share: Mapping[int, int] | None = None,
        endpoint: JoinEndpoint | None = None,
        files: str = "",
        relays: bool = False,
    ) -> None:
        joins, given = newcomers is not None, share if newcomers is None else newcomers
        peers = dict.fromkeys(range(config.peers), 0) if given is None else given
        self.ongoing = OngoingRun(config, program, screen, peers, joins, relays)
        self._files = files
        inherited = peer_environment(self.ongoing.folder, {**os.environ, **(environment or {})})
        self.processes = PeerProcesses(self.ongoing, inherited)
        self.shutdown = PeersShutdown(self.ongoing, self.processes)
        self._restarts = RestartCounter(config.restarts)
        self._lost: set[int] = set()  # local ids that another launcher has, too
        self._explained = False
        # Not None if several launchers share this folder.
        alone = min(peers) if joins or files else None
        self._desk = DrillServer(self.ongoing, self.processes, alone) if config.drills else None
        self.join_server: JoinServer | None = None
        self._invites = endpoint is None or endpoint.invites
        if endpoint is not None or config.room > config.peers:
            endpoint = endpoint or JoinEndpoint(host=inherited.get("GOSSIP_LISTEN", ""))
            self.join_server = self._new_join_server(endpoint)

    def _new_join_server(self, endpoint: JoinEndpoint) -> JoinServer:
        # Imported here because ZeroMQ and the codec take 0.2 s to import, and few launchers have a
        # join server.
        from gossip.launch.registry import JoinServer, JoinServerCallbacks

        run, key = self.ongoing, self.ongoing.folder / SWARM_KEY
        if endpoint.key is None and key.is_file():
            endpoint = replace(endpoint, key=key)
        callbacks = JoinServerCallbacks(run.training, self._lose, run.screen.print_line)
        return JoinServer(run.config, run.folder, run.peers, endpoint, callbacks)

    async def run(self) -> RunOutcome:
        """Run until the last process of the last peer has ended."""
        dump_stacks_on_signal("launcher")
        self.ongoing.open(self.ongoing.folder, self._files)
        self.processes.open(self._on_exit)
        with signals.forward_signals(self.shutdown.on_signal):
            await self._lead()
        return self.ongoing.outcome

    async def _lead(self) -> None:
        """Run all incarnations of all peers, and write the records when the last one has ended."""
        run = self.ongoing
        watcher = asyncio.create_task(self._watch())
        try:
            if self._desk is not None:
                await self._desk.open()
                self.processes.guardian.remove_socket(self._desk.path)
            if self.join_server is not None:
                await self.join_server.open()
                run.record(events.JoinServer(address=self.join_server.address))
                self._invite(self.join_server)
            which = (
                f"peers {', '.join(map(str, run.peers))}"
                if run.joins
                else counted(len(run.peers), "peer")
            )
            run.note(f"starting {which}: {' '.join(run.program.command)}")
            watcher.add_done_callback(self._end_without_watcher)
            await asyncio.gather(*(self._live(*first) for first in run.peers.items()))
            if watcher.done():
                watcher.result()  # raises the error that ended the watcher
        finally:
            watcher.cancel()
            if self._desk is not None:
                self._desk.close()
            self.processes.close()
            if self.join_server is not None:
                await self.join_server.close()
            run.record(events.LauncherEnded(exit_code=run.outcome.exit_code, joins=run.joins))
            run.close()

    def _invite(self, join_server: JoinServer) -> None:
        """Print the command with which other machines join, or only this machine if the join server
        has a loopback address."""
        run, config = self.ongoing, self.ongoing.config
        if config.room <= config.peers or not self._invites:
            return
        head = "others join" if run.joins else f"room for {config.room - config.peers} more"
        invitation = Invitation(
            config, [join_server.address], join_server.key_file, run.program.words
        )
        for line in invitation.format_lines(head, "for others: gossip run --advertise ADDRESS"):
            run.screen.print_line(line)

    async def _watch(self) -> None:
        """Redraw the screen, print the missing peers, and end a run that cannot start or has lost
        its state."""
        run = self.ongoing
        start = StartWait(run, self.processes, self.shutdown, self.join_server)
        try:
            while True:
                run.tick()
                await asyncio.sleep(TICK_S)
                if self.processes.guardian.revive():
                    run.print_line("! the guardian process was killed; it is started again")
                if run.view.holders.in_vain:
                    lost_state.end_if_lost(run, self.shutdown)
                start.check()
        finally:
            start.close()

    def _end_without_watcher(self, watcher: asyncio.Task[None]) -> None:
        """End the run if the watcher has failed: without it, missing peers and the end of other
        peers are not detected."""
        if not watcher.cancelled():
            self.ongoing.stop.set()
            self.processes.send_all(signal.SIGKILL)

    # --- lives of one peer ------------------------------------------------------------------------

    async def _live(self, peer: int, incarnation: int) -> None:
        """Run all incarnations of a peer. If the peer loses its id, it begins again under another
        id."""
        run, processes = self.ongoing, self.processes
        while not run.stop.is_set():
            try:
                process = await processes.begin_life(peer, incarnation)
            except OSError as error:
                now, why = time.monotonic(), f"it cannot be started: {error}"
                life = ProcessLife(peer, incarnation, LocalError.exit_code, None, (why,), now, now)
                run.outcome.lives.append(life)
                self._on_exit(life)
                break
            if process is None:
                break
            # The other peers may have ended while this peer was started.
            self.shutdown.dismiss_latecomers()
            life = await processes.wait_gone(process)
            if peer in self._lost:
                run.ended.add(peer)
                if self.join_server is None or run.stop.is_set():
                    return
                if (new := await self.join_server.claim_own()) is None:
                    run.screen.print_line(f"x there is no room for peer {peer} under another id")
                    return
                run.view.expect(new[0])
                run.peers.update([new])
                await self._live(*new)
                return
            run.outcome.lives.append(life)
            if not await self._starts_again(life):
                break
            if run.others_are_done:
                run.print_line(f"! peer {peer} is not started again: the others are done")
                break
            # A restart of the node may have raised the incarnation, too.
            incarnation = max(incarnation, run.view.rows[peer].incarnation) + 1
            run.print_line(f"+ starting peer {peer} again, incarnation {incarnation}")
        run.ended.add(peer)
        # Announce the end: otherwise finished peers would wait for a restart.
        seeds = run.folder / "seeds"
        run.troubles.try_to(seeds, lambda: announce_end(seeds, peer, incarnation))
        self.shutdown.dismiss_latecomers()

    def _lose(self, peer: int) -> None:
        """End a peer of this launcher. A join server that this one could not reach has assigned the
        same id to another peer."""
        process = self.processes.running.get(peer)
        if process is not None:
            self._lost.add(peer)
            self.ongoing.print_line(
                f"! id {peer} was assigned twice while join servers could not reach each "
                "other: the peer of this launcher gets another id"
            )
            # not SIGTERM: its farewell would be attributed to the other peer
            process.send_all(signal.SIGKILL)

    async def _starts_again(self, life: ProcessLife) -> bool:
        """Wait until a peer must be restarted, after a planned fault or a failure. Return False if
        it is not restarted."""
        planned_s = self.ongoing.view.failures.restarts.pop(life.peer, None)
        after_s = planned_s if self._is_planned(life) else self._back_off_s(life)
        if after_s is None:
            return False
        lost_state.end_if_lost(self.ongoing, self.shutdown)
        wait_s = max(0.0, life.ended_at + after_s - time.monotonic())
        try:
            await asyncio.wait_for(self.ongoing.stop.wait(), wait_s)
        except TimeoutError:
            return not lost_state.end_if_lost(self.ongoing, self.shutdown)
        return False

    def _back_off_s(self, life: ProcessLife) -> float | None:
        """Return the time to wait before a failed peer is restarted, in seconds; None if it is not
        restarted. Record the decision."""
        run, peer, of = self.ongoing, life.peer, self.ongoing.config.restarts
        if not of or run.stop.is_set() or peer in self.shutdown.unneeded:
            return None
        if not died_by_itself(life, run.view.lives.halted.get(peer)):
            return None
        if run.others_are_done:
            run.print_line(f"! peer {peer} is not started again: the others are done")
            return None
        restart = self._restarts.next_restart(life)
        if restart is None:
            run.record(events.RestartsUsedUp(peer=peer, of=of, why=life.how))
            return None
        number, wait_s = restart
        run.record(events.Restarting(peer=peer, number=number, of=of, wait_s=wait_s, why=life.how))
        return wait_s

    def _is_planned(self, life: ProcessLife) -> bool:
        """Whether a planned fault or a drill has killed the process."""
        blow = self.ongoing.view.failures.blow(life.peer)
        struck = blow is not None and blow.kind in ("crash", "restart") and blow.at >= life.began_at
        return struck and life.signal == signal.SIGKILL

    def _on_exit(self, life: ProcessLife) -> None:
        """Record and explain the end of a trainer."""
        run, unneeded = self.ongoing, self.shutdown.unneeded
        blow, planned = run.view.failures.blow(life.peer), self._is_planned(life)
        if blow is not None and blow.planned and life.code in TOO_LATE and run.outcome.finished:
            # The plan restarted the peer only after the others were done.
            unneeded.add(life.peer)
            halted = run.view.lives.halted.get(life.peer)
            run.print_line(
                f"! peer {life.peer} returned too late: "
                f"{life.how if halted is None else halted.reason}"
            )
        stopping = run.stop.is_set() or life.peer in unneeded or life.peer in self._lost
        exited = events.Exited(
            peer=life.peer,
            planned=planned,
            stopping=stopping,
            incarnation=life.incarnation,
            code=life.code,
            signal=life.signal,
            how=life.how,
        )
        run.record(exited, life.ended_at)
        run.note(
            f"peer {life.peer} incarnation {life.incarnation} ended "
            f"{at_round(run.view.progress.round)}: {life.how}"
        )
        if life.code not in (0, EXIT_ASKED) and not planned and not stopping:
            self._explain(life)

    def _explain(self, life: ProcessLife) -> None:
        """Print why a process failed. The first failure is usually the cause of later ones, which
        have only one line each. The model has printed the line of a signal."""
        if life.signal in WITHOUT_ERROR:
            return
        run = self.ongoing
        lines = explain(
            life,
            sum(process.running for process in self.processes.running.values()),
            len(run.outcome.finished),
            run.folder / f"peer-{life.peer}",
            run.program.shadowing({*sys.stdlib_module_names, *sys.modules}),
        )
        for line in lines[life.signal is not None : 1 if self._explained else None]:
            run.screen.print_line(line)
        self._explained = True
