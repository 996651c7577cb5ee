"""Schedules in which some peers are absent at the start, or fail in the first moments.

A machine boots late or never, a job waits in a queue, or a trainer needs long to read its data: the
other peers begin without it, with ``--min-peers``. In other schedules, the peer with the initial
weights dies, hangs or is cut off before another peer has the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gossip.faults import (
    ByzantineFault,
    Crash,
    Fault,
    Hang,
    KillTrainer,
    LateStart,
    LateTrainer,
    Leave,
    NeverStarts,
    NodeAttack,
    Partition,
    Restart,
    StartFault,
)

from .bearable import bearable_of, is_counted
from .lots import FaultSampler
from .schedule import KINDS_MIN, Schedule

SHARE = 0.2
"""Share of schedules with late peers among the random schedules that are not situations."""
TWO = 0.3  # share of two late peers, if there are enough peers
APART = 0.5  # share with different initial weights, as in scripts without a seed
# Share of the schedules with the mean that use the median instead, and number of updates that the
# median needs against one attacker.
ROBUST, MEDIAN_OF = 0.5, 3
WAYS = ("boots late", "prepares long", "prepares long", "never")
PATIENCE_S = (0.2, 1.5)
LATE_S = (1.0, 15.0)
FIRST_SHARE = 0.06
"""Share of schedules with a fault in the first moments among those without late peers."""
FIRST_S = (0.03, 0.4)  # a peer is about to send its weights
LOWEST = 0.6  # share in which the fault affects peer 0, which sends its weights
AWAY_S = (0.3, 4.0)
BEGUN_S = 3.0
"""Time after ``patience_s`` within which all present peers have begun, in seconds. The loss of a
peer before then cannot be survived."""


def begun_late(drawn: Schedule, need: int) -> Schedule:
    """Return the schedule with one or two late peers, or the unchanged schedule.

    Args:
        need: Number of updates that the rule needs against the attackers of the schedule.
    """
    n = drawn.peers
    made = drawn
    lots = FaultSampler(drawn, "late start")
    lot = lots.random()
    two = lots.random()
    apart = lots.random()
    order = lots.peers()
    if lot >= SHARE:
        return drawn
    ways = [lots.choice(WAYS) for _ in range(2)]
    times = [lots.ms(*LATE_S) for _ in range(2)]
    patience_s = lots.long(*PATIENCE_S)
    if lots.random() < ROBUST and drawn.aggregator == "mean" and n > MEDIAN_OF + 1:
        made, need = replace(drawn, aggregator="median"), MEDIAN_OF
    count = 2 if two < TWO else 1
    while count > 1 and n - count < max(n // 2 + 1, need + 1):
        count -= 1
    if n - count < max(n // 2 + 1, need):
        return drawn
    late = [
        _start(way, peer, at_s) for way, peer, at_s in zip(ways, order[:count], times, strict=False)
    ]
    never = {fault.peer for fault in late if isinstance(fault, NeverStarts)}
    early_s = patience_s + BEGUN_S
    kept = [
        fault
        for fault in drawn.faults
        if not _is_of(never, fault) and not (never and _goes_before(early_s, fault))
    ]
    faults = bearable_of([*late, *kept], n)
    gone = sum(isinstance(fault, Crash | Leave | NeverStarts) for fault in faults)
    told = any(map(is_counted, faults))  # such attacks need two honest peers with equal weights
    if need + gone > n or len({type(fault) for fault in faults}) < KINDS_MIN:
        return drawn
    return replace(
        made,
        min_peers=n - count,
        patience_s=patience_s,
        apart=apart < APART and not told,
        faults=faults,
    )


def disturbed(drawn: Schedule, need: int) -> Schedule:
    """Return the schedule with different initial weights and a peer that dies, hangs or is cut off
    while the peers begin; or the unchanged schedule.

    Args:
        need: Number of updates that the rule needs against the attackers of the schedule.
    """
    lots = FaultSampler(drawn, "first moments")
    lot = lots.random()
    lowest = lots.random() < LOWEST
    order = lots.peers()
    at_s = lots.ms(*FIRST_S)
    for_s = lots.long(*AWAY_S)
    way = lots.choice(FIRST)
    if lot >= FIRST_SHARE or any(map(is_counted, drawn.faults)):
        return drawn
    peer = 0 if lowest else order[0]
    first = way(peer, tuple(other for other in range(drawn.peers) if other != peer), at_s, for_s)
    faults = bearable_of([first, *drawn.faults], drawn.peers)
    gone = sum(isinstance(fault, Crash | Leave) for fault in faults)
    if (
        type(first) in map(type, drawn.faults)
        or first not in faults
        or need + gone > drawn.peers
        or len({type(fault) for fault in faults}) < KINDS_MIN
    ):
        return drawn
    return replace(drawn, apart=True, faults=faults)


FIRST: tuple[Callable[[int, tuple[int, ...], float, float], Fault], ...] = (
    lambda peer, others, at_s, for_s: Crash(peer, at_s=at_s),
    lambda peer, others, at_s, for_s: Restart(peer, None, for_s, at_s),
    lambda peer, others, at_s, for_s: KillTrainer(peer, at_s, for_s),
    lambda peer, others, at_s, for_s: Hang(peer, None, for_s, at_s),
    lambda peer, others, at_s, for_s: Partition(((peer,), others), at_s, for_s),
)


def _start(way: str, peer: int, at_s: float) -> StartFault:
    if way == "never":
        return NeverStarts(peer)
    return LateStart(peer, at_s) if way == "boots late" else LateTrainer(peer, at_s)


def _is_of(peers: set[int], fault: Fault) -> bool:
    """Whether the fault is an attack of one of these peers, or affects only one of them."""
    if isinstance(fault, ByzantineFault | NodeAttack):
        return not peers.isdisjoint(fault.peers)
    return getattr(fault, "peer", None) in peers


def _goes_before(at_s: float, fault: Fault) -> bool:
    """Whether the fault permanently removes a peer before ``at_s``."""
    return isinstance(fault, Crash | Leave) and fault.at_s is not None and fault.at_s < at_s
