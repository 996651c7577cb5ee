"""Which of the faults that were drawn a swarm can bear together."""

from __future__ import annotations

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


def bearable_of(faults: list[Fault], n: int) -> tuple[Fault, ...]:
    """Leaves out what the protocol does not promise to survive, and nothing else.

    Those who are gone for good are a minority of those who ever come: a crash, a polite leave. And
    of all who die and come back, one stays up all the time with nobody keeping the others from it,
    and does not lie about its state: without checkpoints that lives in memory alone. Who is late
    has none until it is there.
    """
    gone: list[int] = []
    mortal = [
        peer
        for fault in faults
        if isinstance(fault, NodeAttack) and fault.lie in STATE_ATTACKS
        for peer in fault.peers
    ]
    mortal += [fault.peer for fault in faults if isinstance(fault, LateStart | LateTrainer)]
    n -= sum(isinstance(fault, NeverStarts) for fault in faults)
    kept: list[Fault] = []
    for fault in faults:
        match fault:
            case Crash(peer="server"):
                if len(gone) + 1 >= (n + 1) // 2 or len(mortal) + 1 >= n:
                    continue
                gone.append(-1)  # whoever it will be
            case Crash(peer=victim) | Leave(peer=victim):
                if len(gone) + 1 >= (n + 1) // 2 or len(mortal) + 1 >= n or victim in gone:
                    continue
                assert isinstance(victim, int)
                gone.append(victim)
                mortal.append(victim)
            case Restart(peer=victim) | CrashMidway(peer=victim) | KillTrainer(peer=victim):
                if victim in gone or (victim not in mortal and len(mortal) + 1 >= n - (-1 in gone)):
                    continue
                if victim not in mortal:
                    mortal.append(victim)
            case CrashBroadcast():
                if len(mortal) + 1 >= n - (-1 in gone):
                    continue
                mortal.append(-2)  # likewise
            case Hang(peer=victim) if victim in gone:
                continue
        kept.append(fault)
    crowd = len(mortal) > (n - 1) // 2
    return tuple(
        fault
        for fault in kept
        if not (crowd and isinstance(fault, Hang | HangServer | Partition | Ring))
    )
