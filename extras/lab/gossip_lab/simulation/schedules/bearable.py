"""Selection of the drawn faults that a swarm can survive together."""

from __future__ import annotations

from dataclasses import dataclass, field

from gossip.core import PeerId
from gossip.faults import (
    STATE_ATTACKS,
    Crash,
    CrashBroadcast,
    CrashMidway,
    Fault,
    Hang,
    HangServer,
    KillTrainer,
    LateStart,
    LateTrainer,
    Leave,
    NeverStarts,
    NodeAttack,
    Partition,
    Restart,
    Ring,
)

SOME_SERVER, SOME_MAKER = -1, -2  # whoever it will be


@dataclass(frozen=True, slots=True)
class _Losses:
    """Losses that ``n`` peers bear already: ``gone`` peers are lost for good, and ``mortal`` peers
    lose their state, at least for a while."""

    n: int
    mortal: list[PeerId | str]
    gone: list[PeerId | str] = field(default_factory=list)

    def bear(self, fault: Fault) -> bool:
        """Counts a fault; False: it is one too many."""
        match fault:
            case Crash(peer="server"):
                return self._lose(SOME_SERVER)
            case Crash(peer=victim) | Leave(peer=victim):
                if victim in self.gone or not self._lose(victim):
                    return False
                self.mortal.append(victim)
            case Restart(peer=victim) | CrashMidway(peer=victim) | KillTrainer(peer=victim):
                if victim in self.gone or not (victim in self.mortal or self._may_forget()):
                    return False
                if victim not in self.mortal:
                    self.mortal.append(victim)
            case CrashBroadcast():
                if not self._may_forget():
                    return False
                self.mortal.append(SOME_MAKER)
            case Hang(peer=victim):
                return victim not in self.gone
        return True

    def _lose(self, victim: PeerId | str) -> bool:
        if len(self.gone) + 1 >= (self.n + 1) // 2 or len(self.mortal) + 1 >= self.n:
            return False
        self.gone.append(victim)
        return True

    def _may_forget(self) -> bool:
        return len(self.mortal) + 1 < self.n - (SOME_SERVER in self.gone)


def bearable_of(faults: list[Fault], n: int) -> tuple[Fault, ...]:
    """Leaves out what the protocol does not promise to survive, and nothing else.

    Those who are gone for good are a minority of those who ever come: a crash, a polite leave. And
    of all who die and come back, one stays up all the time with nobody keeping the others from it,
    and does not lie about its state: without checkpoints that lives in memory alone. Who is late
    has none until it is there.
    """
    mortal: list[PeerId | str] = [
        peer
        for fault in faults
        if isinstance(fault, NodeAttack) and fault.lie in STATE_ATTACKS
        for peer in fault.peers
    ]
    mortal += [fault.peer for fault in faults if isinstance(fault, LateStart | LateTrainer)]
    n -= sum(isinstance(fault, NeverStarts) for fault in faults)
    losses = _Losses(n, mortal)
    kept = [fault for fault in faults if losses.bear(fault)]
    crowd = len(losses.mortal) > (n - 1) // 2
    return tuple(
        fault
        for fault in kept
        if not (crowd and isinstance(fault, Hang | HangServer | Partition | Ring))
    )
