"""Runs one swarm on many hosts with an agent on each: shows their events, restarts lost hosts, and
leaves no process behind."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gossip.config import RunConfig
from gossip.errors import GossipError, Malformed
from gossip.launch import signals
from gossip.launch.local import (
    INSECURE,
    INSECURE_EVERY_S,
    STOP_GRACE_S,
    TICK_S,
    WAITING_EVERY_S,
    Guardian,
    ProcessLife,
    Program,
    RunOutcome,
    Stop,
    WaitingReminder,
    invitation,
    waiting,
)
from gossip.launch.report import RunModel, Screen, stages_of, words
from gossip.observe import Event, check_row, events, read_event
from gossip.run import (
    SWARM_KEY,
    JsonLines,
    Logbook,
    checkpoints,
    read_pair,
    shown,
    stage_parts,
    write_json,
)
from gossip.transport import KeyPair

from . import collecting, ssh
from .collecting import Collector
from .frames import Frame
from .hostlist import Host, place
from .remote import AgentLost, RemoteAgent
from .survey import HostRequirements, HostSurvey, find_address, survey

SILENT_S = 5.0
LOST_S = 60.0  # A host that was silent for so long is abandoned, or connected to again.
BACK_OFF_S = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0)
REBOOT_S = 600.0  # time for a lost host to reboot
STEADY_S = 120.0  # After so long the count of restarts of a host begins again.
FETCH_S = 300.0
STOP_SLACK_S = 10.0


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """Program of the peers, and how to reach the hosts.

    Attributes:
        environment: Variables that are sent to every host; no others are sent.
        ssh: Command line of ssh.
        restarts: Maximum number of consecutive restarts of a host's agent.
        module: Whether the script is the name of a module.
        saved: Checkpoint that a pipeline resumes from, with its step if given; "": none.
    """

    hosts: tuple[Host, ...]
    script: str
    arguments: tuple[str, ...] = ()
    workdir: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    ssh: tuple[str, ...] = ("ssh",)
    restarts: int = 3
    module: bool = False
    saved: str = ""

    @property
    def program(self) -> Program:
        """Program that peers run."""
        return Program(self.script, self.arguments, self.module)


@dataclass(slots=True)
class HostState:
    """State of a host of the run."""

    host: Host
    peers: Sequence[int]
    remote: RemoteAgent
    address: str = ""
    join_server: str = ""
    since: float = 0.0
    tries: int = 0
    silent: bool = False
    late: bool = False
    ended: bool = False
    given_up: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    collector: Collector | None = None
    incarnations: dict[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.host.name


class HostsLauncher:
    """One run on many hosts, from the checks to the collected files.

    Args:
        config: Resolved; its peers are those of all hosts.
    """

    def __init__(self, config: RunConfig, program: AgentProgram, screen: Screen) -> None:
        self.config, self.program, self.screen = config, program, screen
        self._wanted = HostRequirements(
            program.program,
            program.workdir,
            config.run_dir,
            config.run,
            stage_parts.where_and_step(program.saved)[0],
        )
        self._token = secrets.token_hex(16)
        self.view = RunModel(config.peers, config.plan, config.steps_per_round, stages_of(config))
        self.outcome = RunOutcome(config, self.view)
        self._guardian = Guardian(self._token)
        placed = place(program.hosts)
        self.places = {
            host.name: HostState(host, placed[host.name], self._remote(host))
            for host in program.hosts
        }
        self._of = {peer: found for found in self.places.values() for peer in found.peers}
        self._stop = asyncio.Event()
        self._explained_by: str | None = None
        self._running = False
        self._key: KeyPair | None = None
        self.resumes: Mapping[str, str] = {}
        """Checkpoint that the peers of each host resume from, by host, if hosts have different
        ones."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._looks = asyncio.Lock()  # An agent handles one request of a kind at a time.

    def _remote(self, host: Host) -> RemoteAgent:
        argv = ssh.command(host, self.program.ssh, self.config.name)
        return RemoteAgent(host, argv, self._guardian, self._on_frame, self._on_end)

    def peer_name(self, peer: int) -> str:
        """``3@nodeb``."""
        return f"{peer}@{self._of[peer].name}" if peer in self._of else str(peer)

    def bracketed(self, peer: int) -> str:
        """Return the prefix of the peer's output lines."""
        return f"[{self.peer_name(peer)}]"

    async def survey_hosts(self) -> HostSurvey:
        """Survey all hosts. Start agents and nothing else."""
        found = await survey(
            {name: place_.remote for name, place_ in self.places.items()}, self._wanted
        )
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
        """Run the peers of all hosts until they have ended and their files are in ``folder``.

        Args:
            folder: Folder of the run, with its swarm key if there is one.
            config: The config after the checks of the hosts.
        """
        began = time.monotonic()
        self.config = self.outcome.config = config
        self._key = read_pair(folder / SWARM_KEY) if config.keyed else None
        self._events = JsonLines(folder / "events.jsonl", "events")
        self._logbook = Logbook(folder / "logbook.md", self.config.name)
        self._folder, self._running = folder, True
        self._write_hosts()
        with signals.forward_signals(self._on_signal):
            await self._lead(began)
        await asyncio.to_thread(collecting.merge_events, folder, self.places)
        return self.outcome

    async def _lead(self, began: float) -> None:
        """Run until every host has reported the end of its part."""
        # A stopped launcher sends no pings, so the agents would take it for unreachable.
        former = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        watcher = asyncio.create_task(self._watch(began))
        try:
            self._note(
                f"starting {words.counted(self.config.peers, 'peer')} on {', '.join(self.places)}: "
                f"{' '.join(self.program.program.what)}"
            )
            for found in self.places.values():
                self._start(found, dict.fromkeys(found.peers, 0))
            await asyncio.gather(*(self._life_of(found) for found in self.places.values()))
            self._running = False
            await asyncio.gather(*(self._fetch(found) for found in self.places.values()))
        finally:
            watcher.cancel()
            signal.signal(signal.SIGTSTP, former)
            self.outcome.wall_s = time.monotonic() - began
            for line in self.view.epochs.rest():
                self._print_line(line)
            self.screen.close(self.view)
            at = words.at_round(self.view.progress.round)
            self._note(
                f"ended after {self.outcome.wall_s:.1f} s {at}, exit code {self.outcome.exit_code}"
            )
            self._logbook.close()
            self._events.close()

    def _start(self, found: HostState, incarnations: dict[int, int]) -> None:
        found.since, found.incarnations = time.monotonic(), incarnations
        config = self.config.model_dump(mode="json")
        config["resume"] = self.resumes.get(found.name, self.config.resume)
        found.remote.send(
            "start",
            config=config,
            run_dir=self._wanted.host_folder(found.host),
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
                "run_dir": self._wanted.host_folder(found.host),
            }
            for found in self.places.values()
        }
        write_json(self._folder / checkpoints.HOSTS, {"hosts": rows})

    async def _life_of(self, found: HostState) -> None:
        """Supervise a host until its peers are done, or it is abandoned."""
        while True:
            await found.over.wait()
            found.over.clear()
            if found.ended:
                return
            self._lose(found)
            if not await self._returns(found):
                found.given_up = True
                self._announce_end(found)
                return

    def _lose(self, found: HostState) -> None:
        left = ", ".join(map(str, self._running_on(found))) or "none"
        self._print_line(f"x {found.name} is lost, with peers {left}: {found.remote.last_words}")
        self._record(events.HostLost(host=found.name, peers=self._running_on(found)))
        for peer in self._running_on(found):
            life = ProcessLife(
                peer,
                self.view.rows[peer].incarnation,
                None,
                signal.SIGKILL,
                (),
                found.since,
                time.monotonic(),
            )
            self.outcome.lives.append(life)
            how = f"lost with {found.name}"
            number = int(signal.SIGKILL)
            self._record(
                events.Exited(
                    peer=peer, incarnation=life.incarnation, code=None, signal=number, how=how
                )
            )

    async def _returns(self, found: HostState) -> bool:
        """Restart the agent of a lost host, and its unfinished peers with the next incarnation.
        Return whether that succeeded."""
        peers = [peer for peer in found.peers if peer not in self.outcome.finished]
        if time.monotonic() - found.since > STEADY_S:
            found.tries = 0
        why = "too often"
        if found.tries < self.program.restarts and peers and not self._is_over:
            found.tries += 1
            if await self._reach_again(found):
                found.silent, found.ended = False, False
                found.over.clear()
                if found.remote.over:  # It ended before its end could be noticed here.
                    found.over.set()
                self._start(found, {peer: self._next_incarnation(found, peer) for peer in peers})
                return True
            why = f"it could not be reached for {REBOOT_S:.0f} s"
        if self._is_over:
            why = "the others are done" if self.outcome.finished else "stopping"
        self._print_line(f"! {found.name} is not restarted: {why}")
        return False

    @property
    def _is_over(self) -> bool:
        return self._stop.is_set() or bool(self.outcome.finished)

    async def _reach_again(self, found: HostState) -> bool:
        """Connect to a lost host until its agent answers, or for ``REBOOT_S``. Return whether it
        answered before the run was over."""
        until, said = time.monotonic() + REBOOT_S, ""
        for pause_s in itertools.chain(
            BACK_OFF_S[found.tries - 1 :], itertools.repeat(BACK_OFF_S[-1])
        ):
            if not said:
                self._print_line(
                    f"+ {found.name} is restarted in {pause_s:.0f} s ({found.tries} of "
                    f"{self.program.restarts})"
                )
            attempt = asyncio.ensure_future(self._reach(found, pause_s))
            stopped = asyncio.ensure_future(self._stop.wait())
            while not attempt.done() and not self._is_over:
                await asyncio.wait(
                    {attempt, stopped}, timeout=1.0, return_when=asyncio.FIRST_COMPLETED
                )
            stopped.cancel()
            if not attempt.done():
                attempt.cancel()
                await asyncio.wait([attempt])
                return False
            if not (error := attempt.result()):
                return True
            if (left_s := until - time.monotonic()) <= 0:
                return False
            if error != said:
                said = error
                self._print_line(f"! {error}: tried again for up to {left_s:.0f} s")
        return False

    async def _reach(self, found: HostState, after_s: float) -> str:
        """Start the agent of a lost host, and find the address of the host again. Return what
        failed; "": nothing."""
        await asyncio.sleep(after_s)
        remote = self._remote(found.host)
        try:
            await remote.open()
            facts = (await remote.ask("check", "facts", **self._wanted.on(found.host)))["facts"]
            if why := facts["workdir_error"] or facts["address_error"]:
                raise AgentLost(f"{found.name} is not ready: {why}")
            if found.address not in facts["addresses"]:
                async with self._looks:
                    others = [other.remote for other in self.places.values() if other is not found]
                    found.address = await find_address(remote, facts["addresses"], others)
                self._write_hosts()
            found.remote = remote
        except GossipError as error:
            return str(error)
        finally:
            if found.remote is not remote and remote.is_open:
                await remote.close(now=True)
        return ""

    def _next_incarnation(self, found: HostState, peer: int) -> int:
        return max(self.view.rows[peer].incarnation, found.incarnations.get(peer, 0)) + 1

    def _announce_end(self, found: HostState) -> None:
        """Announce the end of the peers of a host to the others, which would otherwise wait for
        their restart."""
        for other in self.places.values():
            for peer in found.peers if other is not found else ():
                other.remote.send(
                    "gone", peer=peer, incarnation=self._next_incarnation(found, peer) - 1
                )

    def _running_on(self, found: HostState) -> list[int]:
        return [peer for peer in found.peers if self.view.rows[peer].state not in ("done", "gone")]

    # --- what agents tell -------------------------------------------------------------------------

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
                self.screen.output(int(frame["peer"]), str(frame["text"]), bool(frame["err"]))
            case "say":
                self._print_agent_line(found, str(frame["text"]))
            case "ended":
                found.ended = True
                self.outcome.dismissed.update(frame["dismissed"])
                if frame["stopped"] == "never_started" and not self.outcome.stopped:
                    self.outcome.stopped = "never_started"
                found.over.set()
            case "failed":
                hint = f" (try: {frame['hint']})" if frame.get("hint") else ""
                self._print_line(f"x {found.name}: {frame['message']}{hint}")
                found.tries = self.program.restarts  # Another start would fail, too.
                found.over.set()
            case "file" if found.collector is not None:
                try:
                    found.collector.write_piece(frame)
                except (Malformed, OSError) as error:
                    self._print_line(f"! {error}")

    def _record_row(self, found: HostState, row: dict[str, Any], shift_s: float) -> None:
        try:
            row = collecting.shifted(check_row(row, "events"), shift_s)
        except ValueError as error:
            self._print_line(f"! an event of {found.name} is left out: {error}")
            return
        if isinstance(row.get("peer"), int) and row["peer"] not in found.peers:
            raise ValueError(f"{found.name} reports peer {row['peer']}, which runs on another host")
        self._events.write({**row, "host": found.name})
        event = read_event(row)
        match event:
            case events.JoinServer() if event.address:
                self._introduce(found, event.address)
            case events.Exited():
                number, ended = event.incarnation or 0, (event.code, event.signal)
                self.outcome.lives.append(
                    ProcessLife(event.peer, number, *ended, (), found.since, event.t)
                )
        self._apply(event)

    def _introduce(self, found: HostState, join_server: str) -> None:
        """Send the address of a new join server to the other hosts. Once all hosts have one, print
        how others join."""
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
            self._print_line(line)

    def _print_agent_line(self, found: HostState, text: str) -> None:
        """Print a line of an agent. Details are printed for the first failure only, which is
        usually the cause of the others."""
        if text.startswith("  "):
            if self._explained_by in (None, found.name):
                self._print_line(text)
            return
        if text.startswith("x "):
            self._explained_by = self._explained_by or found.name
        mark, space, rest = text.partition(" ")
        self._print_line(
            f"{mark} {found.name}: {rest}" if len(mark) == 1 and space else f"{found.name}: {text}"
        )

    # --- all hosts --------------------------------------------------------------------------------

    async def _watch(self, began: float) -> None:
        warned, reminder = -INSECURE_EVERY_S, WaitingReminder(began, WAITING_EVERY_S)
        while True:
            now = time.monotonic()
            if self.config.insecure and now - warned >= INSECURE_EVERY_S:
                warned = now
                self._print_line(INSECURE)
            await asyncio.sleep(TICK_S)
            self.screen.tick(self.view)
            self._guardian.revive()
            for found in self.places.values():
                self._listen_for(found)
                self._dismiss_if_late(found)
            if (
                self._running
                and not self.view.lives.ready
                and (awaited := self.view.lives.awaited(now))
                and reminder.is_due(now, awaited)
            ):
                self._print_line(waiting(self.view, self.config, now - began, now, self.peer_name))

    def _listen_for(self, found: HostState) -> None:
        """Print when a host falls silent and when it replies again. Disconnect from a host that
        stays silent."""
        silent_s = found.remote.silent_s
        if (
            found.remote.over
            or found.remote.closing
            or found.given_up
            or (found.ended and not self._running)
        ):
            return
        if not found.silent and silent_s > SILENT_S:
            found.silent = True
            peers = ", ".join(map(str, found.peers))
            self._print_line(
                f"! {found.name} has been silent for {silent_s:.0f} s; its peers {peers} go on "
                "without us if they can"
            )
        elif found.silent and silent_s < SILENT_S:
            found.silent = False
            self._print_line(f"~ {found.name} answers again")
        elif found.silent and silent_s > LOST_S and not found.over.is_set() and not found.ended:
            self._print_line(
                f"! {found.name} has been silent for {LOST_S:.0f} s: it is given up, or connected "
                "to anew"
            )
            self._keep(found.remote.close(now=True))

    def _dismiss_if_late(self, found: HostState) -> None:
        """Stop the peers of a restarted host that came too late: all others are done, and no peer
        is left to send them a state."""
        others_run = any(
            self._running_on(other)
            for other in self.places.values()
            if other is not found and not other.given_up
        )
        here = {self.view.rows[peer].state for peer in self._running_on(found)}
        if (
            found.tries
            and here
            and "training" not in here
            and self.outcome.finished
            and not others_run
            and not found.late
        ):
            found.late = True
            self._print_line(f"! {found.name} came back too late: the others are done")
            self.outcome.dismissed.update(self._running_on(found))
            found.remote.send("stop", why="terminate")

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_signal(self, number: int) -> None:
        interrupted, at_once = number == signal.SIGINT, number == signals.AT_ONCE
        if self.outcome.stopped == "":
            again = " (Ctrl-C again: stop now)" if interrupted else ""
            self._end(
                "interrupt" if interrupted else "terminate",
                "stopping now" if at_once else f"stopping after this round{again}",
            )
            if at_once:
                self._on_signal(number)
        else:
            if self.outcome.stopped == "interrupt":
                self.outcome.stopped = "killed"
            self._send_all("kill")
            self._schedule_abandonment(STOP_SLACK_S)

    def _end(self, why: Stop, say: str) -> None:
        self.outcome.stopped = why
        self._stop.set()
        self._print_line(say)
        self._record(events.Stopping(reason=why))
        self._send_all("stop", why=why)
        self._schedule_abandonment(STOP_GRACE_S + STOP_SLACK_S)

    def _send_all(self, kind: str, **fields: Any) -> None:
        for found in self.places.values():
            found.remote.send(kind, **fields)

    def _schedule_abandonment(self, after_s: float) -> None:
        """Abandon hosts that have not ended ``after_s`` seconds from now. A host that cannot be
        reached is not waited for: its agent ends its peers, or continues if it was cut off."""
        asyncio.get_running_loop().call_later(after_s, self._abandon_hosts)

    def _abandon_hosts(self) -> None:
        for found in self.places.values():
            if self._running and not found.ended and not found.remote.over:
                where = f"{found.host.target}:{self._wanted.host_folder(found.host)}"
                self._print_line(
                    f"! {found.name} did not answer again: see whether it has ended in {where}"
                )
                self._keep(found.remote.close(now=True))

    async def _fetch(self, found: HostState) -> None:
        """Fetch logs, metrics, commits and events of a host's peers. Of a lost host only the sent
        events exist here."""
        if not found.ended or found.remote.over or found.remote.silent_s > SILENT_S:
            self._print_line(
                f"! the logs of {found.name} are there only: {self._wanted.host_folder(found.host)}"
            )
            return
        found.collector = Collector(self._folder, found.name, found.peers)
        try:
            await found.remote.ask("fetch", "fetched", FETCH_S)
        except AgentLost as lost:
            self._print_line(f"! not all logs of {found.name} could be fetched: {lost}")
        found.collector.close()
        for name in found.collector.left_out:
            self._print_line(f"! of {name} on {found.name} only the end was fetched")
        await asyncio.to_thread(found.collector.to_our_clock, found.remote.shift_s)

    def _record(self, event: Event) -> None:
        row = event.to_row(time.monotonic(), time.time())
        self._events.write(row)
        self._apply(read_event(row))

    def _apply(self, event: Event) -> None:
        for line in self.view.apply(event):
            self._print_line(shown(line))

    def _print_line(self, text: str) -> None:
        self.screen.print_line(text)
        if text[:1] in "x+?-*=":
            self._note(text)

    def _note(self, text: str) -> None:
        self._logbook.note(text)
