"""Injects this peer's process faults: crashes, hangs and restarts."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gossip.errors import BadFault
from gossip.faults import Blow, Crash, FaultPlan, Hang, Restart
from gossip.run import Journal

from .claims import ClaimFiles


class FaultInjector:
    """Injector that stops or kills this peer's node and trainer when the plan requires it.

    Each fault happens once in a run: a peer carries out a fault only if the file for this fault
        does not exist yet and the peer can create the file. So a restarted peer is not killed
        again. If the server of a round dies, the next server of
    that round survives, unless the plan has a second fault. If the file cannot be created, a peer
    carries out its own faults only in its first incarnation, because a later incarnation cannot
    detect whether they have happened. Faults of "the server" are then dropped, because every server
    would carry them out.
    """

    def __init__(
        self,
        plan: FaultPlan,
        peer: int,
        incarnation: int,
        run_dir: Path | None,
        journal: Journal,
    ) -> None:
        self._journal, self._first_life = journal, incarnation == 0
        self.claims = ClaimFiles(
            None if run_dir is None else run_dir / "faults", peer, journal.troubles
        )
        self._own: list[tuple[int, Blow]] = []
        self._server: list[tuple[int, Crash]] = []
        self._timed: list[tuple[int, Blow]] = []
        self.round_id = 0
        # Time when the run began, by the monotonic clock that the peers of a host share.
        self.began: float | None = None
        for index, fault in enumerate(plan.real()):
            if not isinstance(fault, (Crash, Restart, Hang)) or (
                run_dir is None and incarnation > 0
            ):
                continue
            if fault.peer == peer:
                (self._own if fault.at_s is None else self._timed).append((index, fault))
            elif fault.peer == "server" and isinstance(fault, Crash):
                self._server.append((index, fault))
        if planned := [*self._own, *self._timed, *self._server]:
            _refuse_unless_alone(planned[0][1])

    def reached(self, round_id: int, timed: bool = False) -> None:
        """Carry out the faults of a round that the trainer is about to start. ``timed``: whether
        other injectors need the time when the run began."""
        self.round_id = round_id
        if self.began is None and (timed or self._timed or self._server):
            self.began = self.claims.beginning()
        if self._own:
            self._strike(self._own, lambda fault: fault.round <= round_id, round_id)

    def serves(self, round_id: int) -> None:
        """Carry out the faults of "the server" of a round. Called when this peer, as the server,
        has received the updates and has not sent the result."""
        if self._server:
            passed_s = 0.0 if self.began is None else time.monotonic() - self.began
            self._strike(
                self._server,
                lambda fault: round_id == fault.round or _is_over(fault.at_s, passed_s),
                round_id,
            )

    def tick(self, now: float) -> None:
        """Carry out timed faults that are due. The caller calls this at each poll."""
        if self._timed and self.began is not None:
            passed_s = now - self.began
            self._strike(self._timed, lambda fault: _is_over(fault.at_s, passed_s), self.round_id)

    def _strike(
        self, faults: list[tuple[int, Any]], applies: Callable[[Any], bool], round_id: int
    ) -> None:
        for entry in [entry for entry in faults if applies(entry[1])]:
            faults.remove(entry)
            own = faults is not self._server
            if self.claims.try_claim(
                str(entry[0]), otherwise=own and self._first_life, fault=str(entry[1])
            ):
                self._carry_out(entry[1], round_id)

    def _carry_out(self, fault: Blow, round_id: int) -> None:
        match fault:
            case Restart(after_s=seconds) | Hang(for_s=seconds):
                extra = {"seconds": seconds}
            case Crash():
                extra = {}
        # Write the event before the fault, because the signal stops or kills this process.
        self._journal.event("fault", kind=fault.kind, round=round_id, fault=str(fault), **extra)
        self._journal.flush(wait_s=0.2)
        os.killpg(os.getpgrp(), signal.SIGSTOP if isinstance(fault, Hang) else signal.SIGKILL)


def _is_over(at_s: float | None, passed_s: float) -> bool:
    return at_s is not None and at_s <= passed_s


def _refuse_unless_alone(fault: Blow) -> None:
    """Check that only this peer's trainer and node are in the process group that receives the
    signal. Raises: BadFault."""
    in_thread = threading.current_thread() is not threading.main_thread()
    leader = os.getpgrp()
    if in_thread or leader != os.getsid(0) or leader not in (os.getpid(), os.getppid()):
        raise BadFault(
            f"fault {fault} cannot be carried out: this peer shares its process group with others, "
            "which would be killed, too",
            "start the peers with `gossip run`, which starts each in its own session",
        )
