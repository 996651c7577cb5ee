"""Processes of the peers of one launcher."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
from collections.abc import Callable, Mapping

from gossip.observe import Row, events
from gossip.run import Appender, whole

from .pauses import StoppedProcesses
from .peer_process import Guardian, PeerCommand, PeerListener, PeerProcess, ProcessLife
from .running import OngoingRun
from .warm import ForkServerGone, WarmStart

START_AGAIN_S = (0.5, 1.0, 2.0, 4.0)  # pauses after failures to start a process, in seconds


class PeerProcesses:
    """Starts the processes of a launcher's peers, sends them signals, and applies drills to them.

    Args:
        environment: Environment that all peers inherit.

    Attributes:
        running: Processes of each peer, until the last one has ended.
        first_start: Time of the first start, in monotonic seconds; None if no process was started
            yet.
    """

    def __init__(self, run: OngoingRun, environment: Mapping[str, str]) -> None:
        self._run, self._environment = run, environment
        self.token = secrets.token_hex(16)
        self.running: dict[int, PeerProcess] = {}
        self.first_start: float | None = None
        self._stopped = StoppedProcesses(self._on_woken)

    def open(self, on_exit: Callable[[ProcessLife], None]) -> None:
        """Prepare to start processes. ``on_exit``: called when the trainer of a peer has ended."""
        self._on_exit = on_exit
        self.guardian = Guardian(self.token)
        self._warm = (
            WarmStart(self._environment, self.token, self._run.print_line)
            if self._run.config.warm
            else None
        )

    def close(self) -> None:
        self._stopped.close()
        self.send_all(signal.SIGKILL)  # Normally no process is left. After an error, some may be.
        self.guardian.close()
        if self._warm is not None:
            self._warm.close()

    async def begin_life(self, peer: int, incarnation: int) -> PeerProcess | None:
        """Start a process of a peer. Return None if the run is stopped before that. Raises:
        OSError: No process can be started, even after several attempts."""
        pauses, stop = iter(START_AGAIN_S), self._run.stop
        while not stop.is_set():
            warm = self._warm if self._warm is not None and await self._warm.ready(stop) else None
            if stop.is_set():
                break
            try:
                return self._start(peer, incarnation, warm)
            except ForkServerGone:
                continue  # The fork server has failed: start without it.
            except OSError as error:
                # Processes, descriptors or memory are exhausted. Other programs may end and free
                # some.
                if (pause_s := next(pauses, None)) is None:
                    raise
                self._run.print_line(
                    f"! peer {peer} cannot be started: {error}; retrying in {pause_s:g} s"
                )
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), pause_s)
        return None

    def _start(self, peer: int, incarnation: int, warm: WarmStart | None) -> PeerProcess:
        run, folder = self._run, self._run.folder / f"peer-{peer}"
        run.troubles.try_to(folder, lambda: folder.mkdir(exist_ok=True))
        process = PeerProcess(
            peer,
            incarnation,
            PeerCommand(run.program, self._environment, self.token, warm),
            Appender(folder / "out.log", run.troubles),
            PeerListener(
                lambda text, err: run.screen.output(peer, text, err), self._on_row, self._on_exit
            ),
        )
        self.running[peer] = process
        if self.first_start is None:
            self.first_start = time.monotonic()
        self.guardian.watch(process)
        joins = (run.joins and incarnation == run.peers[peer]) or None
        run.record(events.Spawned(peer=peer, pid=process.pid, incarnation=incarnation, joins=joins))
        return process

    async def wait_gone(self, process: PeerProcess) -> ProcessLife:
        """Wait until the last process of a peer has ended."""
        try:
            return await process.wait_gone()
        finally:
            self.guardian.forget(process)
            self.running.pop(process.peer, None)

    def is_here(self, peer: int) -> bool:
        """Whether the trainer of the peer is running."""
        process = self.running.get(peer)
        return process is not None and process.running

    def send_all(self, number: int) -> None:
        """Send a signal to all processes of all peers."""
        for process in self.running.values():
            process.send_all(number)

    def send_leave(self, peer: int, number: int = signal.SIGTERM) -> None:
        """Send a signal to the trainer of a peer, and wake the peer, because a stopped process
        could not leave."""
        self.running[peer].send_trainer(number)
        self.running[peer].send_all(signal.SIGCONT)

    # --- faults -----------------------------------------------------------------------------------

    def kill_peer(self, after_s: float | None, peer: int, fault: str) -> None:
        """Send SIGKILL to all processes of a peer. The peer is restarted after ``after_s`` seconds;
        None means never."""
        self._record_fault("crash" if after_s is None else "restart", peer, fault, after_s)
        self.running[peer].send_all(signal.SIGKILL)

    def stop_peer(self, for_s: float, peer: int, fault: str) -> None:
        """Send SIGSTOP to all processes of a peer, and SIGCONT after ``for_s`` seconds."""
        self._record_fault("hang", peer, fault, for_s)
        self.running[peer].send_all(signal.SIGSTOP)
        self._wake_later()

    def ask_peer_to_leave(self, peer: int, fault: str) -> None:
        """Send SIGTERM to the trainer of a peer, as a scheduler does at a preemption. The peer is
        not restarted."""
        self._record_fault("leave", peer, fault)
        self.send_leave(peer)

    def wake_all(self) -> list[int]:
        """Send SIGCONT to all stopped peers now. Return the woken peers."""
        return self._stopped.wake_all()

    def _record_fault(self, kind: str, peer: int, fault: str, seconds: float | None = None) -> None:
        at = self._run.view.progress.round
        self._run.record(events.Fault(peer=peer, kind=kind, round=at, fault=fault, seconds=seconds))

    def _on_row(self, row: Row) -> None:
        """Apply a checked row of a peer."""
        event = self._run.receive(row)
        self._wake_later()
        if isinstance(event, events.RecordIncomplete) and isinstance(event.files, dict):
            lacking = {path: whole(lines) or 0 for path, lines in event.files.items()}
            self._run.outcome.lacking.update(lacking)

    def _wake_later(self) -> None:
        """Schedule SIGCONT for each hang that was just recorded."""
        hangs = self._run.view.failures.hangs
        while hangs:
            peer, after_s = hangs.popitem()
            if (process := self.running.get(peer)) is not None:
                self._stopped.wake_later(process, after_s)

    def _on_woken(self, peer: int, slept_s: float) -> None:
        self._run.record(events.Continued(peer=peer))
        self._run.print_line(f"+ SIGCONT peer {peer} after {slept_s:.1f} s")
