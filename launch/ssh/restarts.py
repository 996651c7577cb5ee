"""Hosts of a run, and the restart of lost hosts."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gossip.errors import GossipError
from gossip.launch.local import RunRecords
from gossip.launch.report import RunModel

from .agent_program import AgentProgram
from .collecting import Collector
from .hostlist import Host
from .remote import AgentLost, RemoteAgent
from .survey import find_address

BACK_OFF_S = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0)
REBOOT_S = 600.0  # time for a lost host to reboot, in seconds
# After running for this time, in seconds, a host may again be restarted the full number of times.
STEADY_S = 120.0


@dataclass(slots=True)
class HostState:
    """State of one host of the run."""

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
    abandoned: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    collector: Collector | None = None
    incarnations: dict[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.host.name

    def unfinished(self, view: RunModel) -> list[int]:
        """Return the peers of the host that have not ended."""
        return [peer for peer in self.peers if view.rows[peer].state not in ("done", "gone")]

    def next_incarnation(self, view: RunModel, peer: int) -> int:
        return max(view.rows[peer].incarnation, self.incarnations.get(peer, 0)) + 1


class HostRestarts:
    """Decides whether a lost host is restarted, and connects to it again if so.

    Args:
        hosts: All hosts, by name.
        connect: Returns a new connection to a host. It is not open yet.
    """

    def __init__(
        self,
        records: RunRecords,
        program: AgentProgram,
        hosts: Mapping[str, HostState],
        connect: Callable[[Host], RemoteAgent],
    ) -> None:
        self._records, self._program, self._limit = records, program, program.restarts
        self._hosts, self._connect = hosts, connect
        # An agent handles only one request of the same kind at a time.
        self._finding = asyncio.Lock()

    async def reconnect(self, found: HostState) -> bool:
        """Restart the agent of a lost host if the host has unfinished peers. Return whether the
        agent was restarted."""
        outcome = self._records.outcome
        if time.monotonic() - found.since > STEADY_S:
            found.tries = 0
        why = "too often"
        if found.tries < self._limit and {*found.peers} - {*outcome.finished} and not self._is_over:
            found.tries += 1
            if await self._reach_again(found):
                found.silent, found.ended = False, False
                found.over.clear()
                if found.remote.over:  # The new agent ended before ``over`` was cleared.
                    found.over.set()
                return True
            why = f"it could not be reached for {REBOOT_S:.0f} s"
        if self._is_over:
            why = "the others are done" if outcome.finished else "stopping"
        self._records.print_line(f"! {found.name} is not restarted: {why}")
        return False

    @property
    def _is_over(self) -> bool:
        return self._records.stop.is_set() or bool(self._records.outcome.finished)

    async def _reach_again(self, found: HostState) -> bool:
        """Try to connect to a lost host until its agent replies, the run is over, or ``REBOOT_S``
        have passed. Return whether the agent has replied."""
        until, said = time.monotonic() + REBOOT_S, ""
        for pause_s in itertools.chain(
            BACK_OFF_S[found.tries - 1 :], itertools.repeat(BACK_OFF_S[-1])
        ):
            if not said:
                self._records.print_line(
                    f"+ {found.name} is restarted in {pause_s:.0f} s ({found.tries} of "
                    f"{self._limit})"
                )
            attempt = asyncio.ensure_future(self._reach(found, pause_s))
            stopped = asyncio.ensure_future(self._records.stop.wait())
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
                self._records.print_line(f"! {error}: retrying for up to {left_s:.0f} s")
        return False

    async def _reach(self, found: HostState, after_s: float) -> str:
        """Start the agent of a lost host, and determine the address of the host again. Return an
        error message; "" if this succeeds."""
        await asyncio.sleep(after_s)
        remote = self._connect(found.host)
        try:
            await remote.open()
            facts = (await remote.ask("check", "facts", **self._program.check_request(found.host)))[
                "facts"
            ]
            if why := facts["workdir_error"] or facts["address_error"]:
                raise AgentLost(f"{found.name} is not ready: {why}")
            if found.address not in facts["addresses"]:
                async with self._finding:
                    others = [other.remote for other in self._hosts.values() if other is not found]
                    found.address = await find_address(remote, facts["addresses"], others)
            found.remote = remote
        except GossipError as error:
            return str(error)
        finally:
            if found.remote is not remote and remote.is_open:
                await remote.close(now=True)
        return ""
