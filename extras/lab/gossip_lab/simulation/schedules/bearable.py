"""Selection of those random faults that a swarm can survive together."""

from __future__ import annotations

from dataclasses import dataclass, field

from gossip.core import PeerId
from gossip.faults import (
    STATE_ATTACKS,
    ByzantineFault,
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


def is_counted(fault: Fault) -> bool:
    """Whether the fault is an attack on updates or states, which the f of a run has to cover."""
    return isinstance(fault, ByzantineFault) or (
        isinstance(fault, NodeAttack) and fault.lie in STATE_ATTACKS
    )


SOME_SERVER, SOME_MAKER = -1, -2  # in place of an id: any server; any server with a commit


@dataclass(frozen=True, slots=True)
class _Losses:
    """Losses of a swarm of ``n`` peers. ``gone`` has the permanently lost peers; ``mortal`` has the
    peers that lose their state, permanently or for a while."""

    n: int
    mortal: list[PeerId | str]
    gone: list[PeerId | str] = field(default_factory=list)

    def bear(self, fault: Fault) -> bool:
        """Add the losses of a fault and return True. Return False if the swarm could not survive
        them."""
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
    """Remove the faults that the protocol does not have to survive together with the other faults.

    The permanently lost peers (by a crash or a leave) must be a minority of all peers that ever
    start. There are no checkpoints, so the state is only in memory: at least one peer must neither
    die, nor be cut off from the others, nor have a false state. A late peer has no state until it
    starts.
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
