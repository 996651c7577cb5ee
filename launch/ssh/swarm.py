"""Launcher of one swarm on many hosts, with an agent on each host. It shows the events of all
hosts, restarts lost hosts, and leaves no process behind."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gossip.config import RunConfig
from gossip.errors import Malformed
from gossip.launch import signals
from gossip.launch.local import (
    TICK_S,
    WAITING_EVERY_S,
    Guardian,
    ProcessLife,
    RunOutcome,
    RunRecords,
    WaitingReminder,
    invitation,
    waiting,
)
from gossip.launch.report import Screen, words
from gossip.observe import check_row, events
from gossip.run import (
    SWARM_KEY,
    checkpoints,
    read_pair,
    write_json,
)
from gossip.transport import KeyPair

from . import collecting, ssh
from .agent_program import AgentProgram
from .collecting import Collector
from .frames import Frame
from .hostlist import Host, place
from .remote import AgentLost, RemoteAgent
from .restarts import HostRestarts, HostState
from .shutdown import SILENT_S, HostsShutdown
from .survey import HostSurvey, survey

FETCH_S = 300.0


class HostsLauncher:
    """Launcher of one run on many hosts, from the checks to the collection of files.

    Args:
        config: Resolved settings. They include the peers of all hosts.
    """

    def __init__(self, config: RunConfig, program: AgentProgram, screen: Screen) -> None:
        self.config, self.program = config, program
        self.records = RunRecords(config, screen, range(config.peers))
        self._guardian = Guardian(secrets.token_hex(16))
        placed = place(program.hosts)
        self.places = {
            host.name: HostState(host, placed[host.name], self._remote(host))
            for host in program.hosts
        }
        self._of = {peer: found for found in self.places.values() for peer in found.peers}
        self._shutdown = HostsShutdown(self.records, program, self.places)
        self._restarts = HostRestarts(self.records, program, self.places, self._remote)
        self._explained_by: str | None = None
        self._key: KeyPair | None = None
        self.resumes: Mapping[str, str] = {}
        """Checkpoint from which to resume, by host, if it differs between hosts."""

    def _remote(self, host: Host) -> RemoteAgent:
        argv = ssh.command(host, self.program.ssh, self.config.name)
        return RemoteAgent(host, argv, self._guardian, self._on_frame, self._on_end)

    def peer_name(self, peer: int) -> str:
        """Return the name of a peer with its host, such as ``3@nodeb``."""
        return f"{peer}@{self._of[peer].name}" if peer in self._of else str(peer)

    def bracketed(self, peer: int) -> str:
        """Return the prefix for the output lines of a peer."""
        return f"[{self.peer_name(peer)}]"

    async def survey_hosts(self) -> HostSurvey:
        """Check all hosts. This starts only the agents."""
        remotes = {name: found.remote for name, found in self.places.items()}
        found = await survey(remotes, self.program)
        for name, address in found.addresses.items():
            self.places[name].address = address
        return found

    async def close(self) -> None:
        """Disconnect from all agents."""
        there = [found.remote for found in self.places.values() if not found.remote.over]
        await asyncio.gather(*(remote.close(now=remote.silent_s > SILENT_S) for remote in there))
        self._guardian.close()

    # --- the run ----------------------------------------------------------------------------------

    async def run(self, folder: Path, config: RunConfig) -> RunOutcome:
        """Run the peers of all hosts until they have ended. Then collect their files in ``folder``.

        Args:
            folder: Folder of the run, which contains the swarm key in a run with keys.
            config: Settings, as changed by the checks of the hosts.
        """
        self.config = self.records.outcome.config = config
        self._key = read_pair(folder / SWARM_KEY) if config.keyed else None
        self._folder = folder
        self.records.open(folder)
        self._write_hosts()
        with signals.forward_signals(self._shutdown.on_signal):
            await self._lead()
        await asyncio.to_thread(collecting.merge_events, folder, self.places)
        return self.records.outcome

    async def _lead(self) -> None:
        """Run until every host has reported the end of its peers, or was abandoned."""
        # Ignore Ctrl-Z: a stopped launcher sends no pings, so the agents would treat it as
        # unreachable.
        former = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        watcher = asyncio.create_task(self._watch())
        try:
            self.records.note(
                f"starting {words.counted(self.config.peers, 'peer')} on {', '.join(self.places)}: "
                f"{' '.join(self.program.program.what)}"
            )
            for found in self.places.values():
                self._start(found, dict.fromkeys(found.peers, 0))
            await asyncio.gather(*(self._life_of(found) for found in self.places.values()))
            await asyncio.gather(*(self._fetch(found) for found in self.places.values()))
        finally:
            watcher.cancel()
            signal.signal(signal.SIGTSTP, former)
            self.records.close()

    def _start(self, found: HostState, incarnations: dict[int, int]) -> None:
        found.since, found.incarnations = time.monotonic(), incarnations
        config = self.config.model_dump(mode="json")
        config["resume"] = self.resumes.get(found.name, self.config.resume)
        found.remote.send(
            "start",
            config=config,
            run_dir=self.program.host_folder(found.host),
            words=self.program.program.words,
            environment=dict(self.program.environment),
            peers={str(peer): incarnation for peer, incarnation in incarnations.items()},
            address=found.address,
            key={"public": self._key.public, "secret": self._key.secret}
            if self._key is not None
            else None,
            join_servers=[
                other.join_server
                for other in self.places.values()
                if other.join_server and other is not found
            ],
        )

    def _write_hosts(self) -> None:
        rows = {
            found.name: {
                "ssh": found.host.target,
                "port": found.host.port,
                "python": ssh.python_of(found.host),
                "peers": list(found.peers),
                "address": found.address,
                "workdir": found.host.workdir or self.program.workdir,
                "run_dir": self.program.host_folder(found.host),
            }
            for found in self.places.values()
        }
        write_json(self._folder / checkpoints.HOSTS, {"hosts": rows})

    async def _life_of(self, found: HostState) -> None:
        """Supervise a host until its peers have ended, or the host is abandoned."""
        while True:
            await found.over.wait()
            found.over.clear()
            if found.ended:
                return
            self._lose(found)
            if not await self._restarts.reconnect(found):
                found.abandoned = True
                self._announce_end(found)
                return
            self._write_hosts()  # The host may have another address now.
            incarnations = {
                peer: found.next_incarnation(self.records.view, peer)
                for peer in found.peers
                if peer not in self.records.outcome.finished
            }
            self._start(found, incarnations)

    def _lose(self, found: HostState) -> None:
        records, unfinished = self.records, found.unfinished(self.records.view)
        left = ", ".join(map(str, unfinished)) or "none"
        records.print_line(f"x {found.name} is lost, with peers {left}: {found.remote.last_words}")
        records.record(events.HostLost(host=found.name, peers=unfinished))
        how, number, now = f"lost with {found.name}", int(signal.SIGKILL), time.monotonic()
        for peer in unfinished:
            life = records.view.rows[peer].incarnation
            records.outcome.lives.append(
                ProcessLife(peer, life, None, number, (), found.since, now)
            )
            records.record(
                events.Exited(peer=peer, incarnation=life, code=None, signal=number, how=how)
            )

    def _announce_end(self, found: HostState) -> None:
        """Announce the end of the peers of a host to the other hosts. Otherwise the peers there
        would wait for a restart."""
        for other in self.places.values():
            for peer in found.peers if other is not found else ():
                incarnation = found.next_incarnation(self.records.view, peer) - 1
                other.remote.send("gone", peer=peer, incarnation=incarnation)

    # --- frames of agents -------------------------------------------------------------------------

    def _on_end(self, remote: RemoteAgent) -> None:
        if (found := self.places[remote.name]).remote is remote:
            found.over.set()

    def _on_frame(self, remote: RemoteAgent, frame: Frame) -> None:
        if (found := self.places[remote.name]).remote is not remote:
            return
        match frame["kind"]:
            case "row":
                self._record_row(found, frame["row"], remote.shift_s)
            case "output":
                peer, text = int(frame["peer"]), str(frame["text"])
                self.records.screen.output(peer, text, bool(frame["err"]))
            case "say":
                self._print_agent_line(found, str(frame["text"]))
            case "ended":
                found.ended = True
                self.records.outcome.dismissed.update(frame["dismissed"])
                if frame["stopped"] == "never_started" and not self.records.outcome.stopped:
                    self.records.outcome.stopped = "never_started"
                found.over.set()
            case "failed":
                hint = f" (try: {frame['hint']})" if frame.get("hint") else ""
                self.records.print_line(f"x {found.name}: {frame['message']}{hint}")
                # Do not restart: another start would fail, too.
                found.tries = self.program.restarts
                found.over.set()
            case "file" if found.collector is not None:
                try:
                    found.collector.write_piece(frame)
                except (Malformed, OSError) as error:
                    self.records.print_line(f"! {error}")

    def _record_row(self, found: HostState, row: dict[str, Any], shift_s: float) -> None:
        try:
            row = collecting.shifted(check_row(row, "events"), shift_s)
        except ValueError as error:
            self.records.print_line(f"! an event of {found.name} is left out: {error}")
            return
        if isinstance(row.get("peer"), int) and row["peer"] not in found.peers:
            raise ValueError(f"{found.name} reports peer {row['peer']}, which runs on another host")
        match event := self.records.receive({**row, "host": found.name}):
            case events.JoinServer() if event.address:
                self._introduce(found, event.address)
            case events.Exited():
                number, ended = event.incarnation or 0, (event.code, event.signal)
                self.records.outcome.lives.append(
                    ProcessLife(event.peer, number, *ended, (), found.since, event.t)
                )

    def _introduce(self, found: HostState, join_server: str) -> None:
        """Send the address of a new join server to the other hosts. When all hosts have a join
        server, print the command with which other machines join."""
        found.join_server = join_server
        for other in self.places.values():
            if other is not found:
                other.remote.send("join_servers", addresses=[join_server])
        command = self.program.program.words
        for line in invitation.of_many_hosts(
            self.config,
            self._folder,
            [other.join_server for other in self.places.values()],
            command,
        ):
            self.records.print_line(line)

    def _print_agent_line(self, found: HostState, text: str) -> None:
        """Print a line of an agent. Details are printed only for the first failure, which is
        usually the cause of later ones."""
        if text.startswith("  "):
            if self._explained_by in (None, found.name):
                self.records.print_line(text)
            return
        if text.startswith("x "):
            self._explained_by = self._explained_by or found.name
        mark, space, rest = text.partition(" ")
        self.records.print_line(
            f"{mark} {found.name}: {rest}" if len(mark) == 1 and space else f"{found.name}: {text}"
        )

    # --- all hosts --------------------------------------------------------------------------------

    async def _watch(self) -> None:
        records, view, began = self.records, self.records.view, self.records.began
        reminder = WaitingReminder(began, WAITING_EVERY_S)
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            records.tick()
            self._guardian.revive()
            for found in self.places.values():
                self._shutdown.watch_silence(found)
                self._shutdown.dismiss_if_late(found)
            if (
                self._shutdown.is_running
                and not view.lives.ready
                and (awaited := view.lives.awaited(now))
                and reminder.is_due(now, awaited)
            ):
                records.print_line(waiting(view, self.config, now - began, now, self.peer_name))

    async def _fetch(self, found: HostState) -> None:
        """Fetch the logs, metrics, commits and events of a host's peers. If the host is lost, this
        machine has only the events that the host has sent."""
        if not found.ended or found.remote.over or found.remote.silent_s > SILENT_S:
            self.records.print_line(
                f"! not fetched: logs of {found.name} in {self.program.host_folder(found.host)}"
            )
            return
        found.collector = Collector(self._folder, found.name, found.peers)
        try:
            await found.remote.ask("fetch", "fetched", FETCH_S)
        except AgentLost as lost:
            self.records.print_line(f"! not all logs of {found.name} could be fetched: {lost}")
        found.collector.close()
        for name in found.collector.left_out:
            self.records.print_line(f"! only the end of {name} on {found.name} was fetched")
        await asyncio.to_thread(found.collector.to_our_clock, found.remote.shift_s)
