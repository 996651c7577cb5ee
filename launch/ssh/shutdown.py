"""End of a run on many hosts."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import Any

from gossip.launch import signals
from gossip.launch.local import STOP_GRACE_S, RunRecords
from gossip.observe import events

from .agent_program import AgentProgram
from .restarts import HostState

STOP_SLACK_S = 10.0
SILENT_S = 5.0
LOST_S = 60.0  # A host that was silent for this long, in seconds, is reconnected or abandoned.


class HostsShutdown:
    """Requests agents to end their peers, and disconnects from agents that do not reply.

    Args:
        hosts: All hosts, by name.
    """

    def __init__(
        self, records: RunRecords, program: AgentProgram, hosts: Mapping[str, HostState]
    ) -> None:
        self._records, self._program, self._hosts = records, program, hosts
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_running(self) -> bool:
        """Whether any host has peers that have not ended."""
        return not all(found.ended or found.abandoned for found in self._hosts.values())

    def on_signal(self, number: int) -> None:
        records, outcome = self._records, self._records.outcome
        if outcome.stopped:
            if outcome.stopped == "interrupt":
                outcome.stopped = "killed"
            self._send_all("kill")
            self._abandon_later(STOP_SLACK_S)
            return
        interrupted, at_once = number == signal.SIGINT, number == signals.AT_ONCE
        again = " (Ctrl-C again: stop now)" if interrupted else ""
        outcome.stopped = why = "interrupt" if interrupted else "terminate"
        records.stop.set()
        records.print_line("stopping now" if at_once else f"stopping after this round{again}")
        records.record(events.Stopping(reason=why))
        self._send_all("stop", why=why)
        self._abandon_later(STOP_GRACE_S + STOP_SLACK_S)
        if at_once:
            self.on_signal(number)

    def dismiss_if_late(self, found: HostState) -> None:
        """Stop the peers of a restarted host that is too late: the other peers have finished, and
        no peer is left that could send a state."""
        view, outcome = self._records.view, self._records.outcome
        others_run = any(
            other.unfinished(view)
            for other in self._hosts.values()
            if other is not found and not other.abandoned
        )
        late = found.unfinished(view)
        here = {view.rows[peer].state for peer in late}
        if (
            found.tries
            and here
            and "training" not in here
            and outcome.finished
            and not others_run
            and not found.late
        ):
            found.late = True
            self._records.print_line(f"! {found.name} returned too late: the others have finished")
            outcome.dismissed.update(late)
            found.remote.send("stop", why="terminate")

    def watch_silence(self, found: HostState) -> None:
        """Print a line when a host becomes silent, and when it replies again. Disconnect from a
        host that stays silent for ``LOST_S``."""
        silent_s = found.remote.silent_s
        if (
            found.remote.over
            or found.remote.closing
            or found.abandoned
            or (found.ended and not self.is_running)
        ):
            return
        if not found.silent and silent_s > SILENT_S:
            found.silent = True
            peers = ", ".join(map(str, found.peers))
            self._records.print_line(
                f"! {found.name} has been silent for {silent_s:.0f} s; if possible, its peers "
                f"{peers} continue without the launcher"
            )
        elif found.silent and silent_s < SILENT_S:
            found.silent = False
            self._records.print_line(f"~ {found.name} replies again")
        elif found.silent and silent_s > LOST_S and not found.over.is_set() and not found.ended:
            self._records.print_line(
                f"! {found.name} has been silent for {LOST_S:.0f} s: it is reconnected or abandoned"
            )
            self._disconnect(found)

    def _disconnect(self, found: HostState) -> None:
        """Close the connection to a host in the background."""
        task = asyncio.get_running_loop().create_task(found.remote.close(now=True))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _send_all(self, kind: str, **fields: Any) -> None:
        for found in self._hosts.values():
            found.remote.send(kind, **fields)

    def _abandon_later(self, after_s: float) -> None:
        """Abandon those hosts that have not ended ``after_s`` seconds from now. The agent of an
        unreachable host ends its peers by itself, or lets them continue if the host was cut off."""
        asyncio.get_running_loop().call_later(after_s, self._abandon_hosts)

    def _abandon_hosts(self) -> None:
        for found in self._hosts.values():
            if self.is_running and not found.ended and not found.remote.over:
                where = f"{found.host.target}:{self._program.host_folder(found.host)}"
                self._records.print_line(
                    f"! {found.name} has not replied: check whether it has ended in {where}"
                )
                self._disconnect(found)
