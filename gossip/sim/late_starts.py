"""Starts at which not everybody is there: the others begin with ``--min-peers``. Someone comes later, or never does.

A machine boots late or never, a job waits in its queue, a trainer reads its data for longer than the others do.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from gossip.fault_kinds import Crash, Liar
from gossip.fault_tables import Fault
from gossip.start_faults import LateStart, LateTrainer, NeverStarts, StartFault
from gossip.world_faults import STATE_LIES, Leave, NodeLie

from .bearable import bearable_of
from .lots import Lots
from .schedule import KINDS_MIN, Schedule

SHARE = 0.2
"""Of the random schedules that are of no situation."""
TWO = 0.3  # of those, where there are enough peers: two are late
APART = 0.5  # likewise: scripts without a seed, whose weights differ until they begin
ROBUST, MEDIAN_OF = 0.5, 3  # of those with a mean: a median, where it has updates enough against one liar
WAYS = ("boots late", "prepares long", "prepares long", "never")
PATIENCE_S = (0.2, 1.5)
LATE_S = (1.0, 15.0)
BEGUN_S = 3.0
"""After the patience: whoever is there has begun by then, and who is gone before is one too many to be missing."""


def begun_late(drawn: Schedule, need: int) -> Schedule:
    """The schedule with one peer late, or two; or just as it was drawn.

    Args:
        need: Updates that the rule needs against the liars there are.
    """
    n, made, lots = drawn.peers, drawn, Lots(Random(f"schedule/{drawn.seed}/late start"), drawn.peers, drawn.active_s)
    lot, two, apart, order = lots.random.random(), lots.random.random(), lots.random.random(), lots.peers()
    if lot >= SHARE:
        return drawn
    ways = [lots.random.choice(WAYS) for _ in range(2)]
    times, patience_s = [lots.ms(*LATE_S) for _ in range(2)], lots.long(*PATIENCE_S)
    if lots.random.random() < ROBUST and drawn.aggregator == "mean" and n > MEDIAN_OF + 1:
        made, need = replace(drawn, aggregator="median"), MEDIAN_OF
    count = 2 if two < TWO else 1
    while count > 1 and n - count < max(n // 2 + 1, need + 1):
        count -= 1
    if n - count < max(n // 2 + 1, need):
        return drawn
    late = [_start(way, peer, at_s) for way, peer, at_s in zip(ways, order[:count], times, strict=False)]
    never = {fault.peer for fault in late if isinstance(fault, NeverStarts)}
    early_s = patience_s + BEGUN_S
    kept = [fault for fault in drawn.faults if not _is_of(never, fault) and not (never and _goes_before(early_s, fault))]
    faults = bearable_of([*late, *kept], n)
    gone = sum(isinstance(fault, Crash | Leave | NeverStarts) for fault in faults)
    told = any(isinstance(fault, Liar) or (isinstance(fault, NodeLie) and fault.lie in STATE_LIES) for fault in faults)
    if need + gone > n or len({type(fault) for fault in faults}) < KINDS_MIN:
        return drawn
    return replace(made, min_peers=n - count, patience_s=patience_s, apart=apart < APART and not told, faults=faults)


def _start(way: str, peer: int, at_s: float) -> StartFault:
    if way == "never":
        return NeverStarts(peer)
    return LateStart(peer, at_s) if way == "boots late" else LateTrainer(peer, at_s)


def _is_of(peers: set[int], fault: Fault) -> bool:
    """Whether it is what one of them does, or what befalls it alone."""
    if isinstance(fault, Liar | NodeLie):
        return not peers.isdisjoint(fault.peers)
    return getattr(fault, "peer", None) in peers


def _goes_before(at_s: float, fault: Fault) -> bool:
    """For good."""
    return isinstance(fault, Crash | Leave) and fault.at_s is not None and fault.at_s < at_s
