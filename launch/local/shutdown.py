"""Ends peers: all peers at the end of the run, or single peers that are not needed."""

from __future__ import annotations

import asyncio
import signal

from gossip.launch import signals
from gossip.observe import events

from .outcome import Stop
from .peer_process import PeerProcess
from .processes import PeerProcesses
from .running import OngoingRun

# Time from the first Ctrl-C until peers that have not left are killed, in seconds.
STOP_GRACE_S = 30.0


class PeersShutdown:
    """Sends signals to peers to leave, and kills those that have not left after a grace period.

    Attributes:
        unneeded: Peers that got a request to leave because they returned too late, or waited for a
            start that had become impossible.
    """

    def __init__(self, run: OngoingRun, processes: PeerProcesses) -> None:
        self._run, self._processes = run, processes
        self.unneeded: set[int] = set()

    def on_signal(self, number: int) -> None:
        stopped = self._run.outcome.stopped
        interrupted = number == signal.SIGINT
        if number == signals.AT_ONCE:
            if stopped == "":
                self.end("terminate")
            self.kill("stopping now")
        elif stopped == "":
            again = " (Ctrl-C again: stop now)" if interrupted else ""
            self.end(
                "interrupt" if interrupted else "terminate", f"stopping after this round{again}"
            )
        else:
            self.kill("stopping now" if stopped in ("interrupt", "terminate") else "")

    def end(self, why: Stop, say: str = "", grace_s: float | None = None) -> None:
        """Signal every trainer to leave after its round, and kill the peers that have not left
        after ``grace_s`` seconds."""
        run, grace_s = self._run, STOP_GRACE_S if grace_s is None else grace_s
        if run.all_ended:
            return  # All peers have ended. Only the records must still be written.
        run.outcome.stopped = why
        run.stop.set()
        if say:
            run.print_line(say)
        run.record(events.Stopping(reason=why))
        for peer in self._processes.running:
            # After Ctrl-C, SIGINT raises KeyboardInterrupt in every script, as it does without
            # gossip.
            self._processes.send_leave(
                peer, signal.SIGINT if why == "interrupt" else signal.SIGTERM
            )
        asyncio.get_running_loop().call_later(grace_s, self.kill, f"not gone after {grace_s:.0f} s")

    def kill(self, say: str) -> None:
        """Kill all remaining processes."""
        running = self._processes.running
        left = {peer: pids for peer, process in running.items() if (pids := process.members())}
        if not left:
            return
        if say:
            named = ", ".join(
                f"{peer} (pids {' '.join(map(str, pids))})" for peer, pids in left.items()
            )
            self._run.print_line(f"{say}: killing peers {named}")
        if self._run.outcome.stopped == "interrupt":
            self._run.outcome.stopped = "killed"
        self._processes.send_all(signal.SIGKILL)

    def dismiss_latecomers(self) -> None:
        """Stop restarted peers that are too late: the others have finished, and no peer is left
        that could send a state."""
        rows, running = self._run.view.rows, self._processes.running
        if not self._run.outcome.finished or any(
            rows[peer].state == "training" for peer in running
        ):
            return
        for peer, process in running.items():
            row = rows[peer]
            # Until the new incarnation has announced itself, the row is about the previous one.
            waits = row.state in ("starting", "here") or (row.state == "gone" and process.running)
            restarted = process.incarnation > self._run.peers[peer]
            if restarted and waits and peer not in self.unneeded:
                self._run.print_line(f"! peer {peer} returned too late: the others have finished")
                self.dismiss(process)

    def dismiss(self, process: PeerProcess) -> None:
        """Send SIGTERM to a peer that the run does not need, so that the peer leaves. Kill it after
        ``STOP_GRACE_S``, because its script may ignore SIGTERM."""
        self.unneeded.add(process.peer)
        process.send_trainer(signal.SIGTERM)
        asyncio.get_running_loop().call_later(STOP_GRACE_S, self._kill_dismissed, process)

    def _kill_dismissed(self, process: PeerProcess) -> None:
        if self._processes.running.get(process.peer) is process and process.running:
            self._run.print_line(
                f"! killing peer {process.peer}: not gone after {STOP_GRACE_S:.0f} s"
            )
            process.send_all(signal.SIGKILL)
