"""Generates random schedules of pipelines. Their faults are those of an ordinary schedule that all
stages can survive."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

from gossip.faults import (
    ActivationFault,
    Corrupt,
    Crash,
    CrashMidway,
    Delay,
    Drift,
    Duplicate,
    FalseAudits,
    Fault,
    Flap,
    Hang,
    HangTrainer,
    KillTrainer,
    LateTimers,
    LateTrainer,
    Loss,
    NegatedActivations,
    NegatedGradients,
    Partition,
    Reorder,
    Reset,
    Restart,
    ScaledGradients,
    Slow,
    SlowNode,
    Spike,
)

from .generator import generate
from .schedule import Schedule

SIZES = ((2, 2), (3, 3), (2, 3, 1), (2, 2, 2), (3, 3, 3), (1, 2, 2), (3, 4), (3, 3, 3))
"""Possible numbers of members of each stage; each entry is equally likely."""
MICRO_BATCHES = (2, 4, 6, 8)
LARGE_ENOUGH = 3
"""Minimum number of members of a stage with a majority. Two members that are separated by a
partition both continue alone, which forks the history."""
ROUNDS_MIN = 20
AUDITS = (0.1, 0.3, 0.6)
"""Possible probabilities of the audit of a micro-batch, in runs with audits."""
LIES = (NegatedActivations, NegatedGradients, ScaledGradients, FalseAudits)
SHARES = (None, 0.5, 0.2)
LOST_EVERY = 5  # in one of this many schedules a stage loses all peers
LATE_SHARE = 0.15
"""Share of the other schedules in which a peer builds its layers only after other stages have
begun."""
LATE_S = (0.5, 10.0)

OF_MACHINES = (Crash, Restart, CrashMidway, KillTrainer, Hang, HangTrainer)
SLOWING = (Slow, SlowNode, LateTimers, Drift, Duplicate)
OF_NETWORKS = (Partition, Flap, Loss, Delay, Reorder, Reset, Spike, Corrupt)
DEADLY = (Crash, Restart, CrashMidway, KillTrainer)


def generate_pipeline(seed: int) -> Schedule:
    """Return the schedule with a pipeline for this seed."""
    draw = Random(f"pipeline/{seed}")
    sizes, micro_batches = draw.choice(SIZES), draw.choice(MICRO_BATCHES)
    peers = sum(sizes)
    drawn = generate(seed, peers=peers, topology="rolling", aggregator="mean")
    usual = Schedule(seed)
    schedule = replace(
        drawn,
        faults=(),
        stages=sizes,
        micro_batches=micro_batches,
        rounds_min=ROUNDS_MIN,
        shards=usual.shards,
        batch_policy=usual.batch_policy,
        piece_bytes=usual.piece_bytes,
    )
    survivors = {draw.choice(members) for members in schedule.members}
    faults = _bearable(drawn.faults, schedule, survivors)
    if seed % LOST_EVERY == 1:
        return replace(schedule, faults=_with_lost_stage(faults, schedule, draw)).checked()
    schedule = replace(schedule, faults=faults)
    late = _with_late_trainer(schedule, survivors, Random(f"first round/{seed}"))
    return _with_audits(late, Random(f"audits/{seed}")).checked()


def _with_late_trainer(schedule: Schedule, survivors: set[int], draw: Random) -> Schedule:
    """In some schedules, delay the time at which a trainer has built its layers. Until then its
    peer drops the activations of the previous stage."""
    peer, at_s = draw.choice(sorted(survivors)), draw.uniform(*LATE_S)
    if draw.random() >= LATE_SHARE:
        return schedule
    return replace(schedule, faults=(*schedule.faults, LateTrainer(peer, round(at_s, 3))))


def _with_audits(schedule: Schedule, draw: Random) -> Schedule:
    """Add audits to half of the schedules with large enough stages. In most of these schedules, one
    or more stages have a Byzantine member."""
    if min(schedule.stages) < LARGE_ENOUGH or draw.random() < 0.5:
        return schedule
    lies: list[ActivationFault] = []
    for members in schedule.members:
        if draw.random() < 0.6:
            lies.append(draw.choice(LIES)((draw.choice(members),), draw.choice(SHARES)))
    return replace(schedule, audit=draw.choice(AUDITS), faults=(*schedule.faults, *lies))


def _with_lost_stage(
    faults: tuple[Fault, ...], schedule: Schedule, draw: Random
) -> tuple[Fault, ...]:
    """Kill all peers of one stage at about the same time. Some of them may not return: one of two
    peers, or a minority of more peers."""
    members = draw.choice(schedule.members)
    at_s = draw.uniform(0.3, 0.7) * schedule.active_s
    most = 1 if len(members) == 2 else (len(members) - 1) // 2
    away = draw.sample(members, draw.choice((0, most)))
    kept = [
        f for f in faults if not (isinstance(f, DEADLY) and getattr(f, "peer", None) in members)
    ]
    lost: list[Fault] = []
    for peer in members:
        when_s = at_s + draw.choice((0.0, draw.uniform(0.0, 0.1), draw.uniform(0.0, 1.0)))
        lost.append(
            Crash(peer, at_s=when_s)
            if peer in away
            else Restart(peer, None, draw.uniform(0.1, 3.0), at_s=when_s)
        )
    dead_at = {fault.peer: fault.at_s for fault in lost if isinstance(fault, Crash)}
    return (
        *[
            fault
            for fault in kept
            if not isinstance(fault, Hang) or (fault.at_s or 0.0) < (dead_at.get(fault.peer) or inf)
        ],
        *lost,
    )


def _bearable(
    faults: tuple[Fault, ...], schedule: Schedule, survivors: set[int]
) -> tuple[Fault, ...]:
    """Return only those faults after which each stage still has a member with its state, and a
    majority of its members is not permanently lost."""
    kinds: tuple[type[Fault], ...] = OF_MACHINES + SLOWING
    if min(schedule.stages) >= LARGE_ENOUGH:
        kinds += OF_NETWORKS
    gone: set[int] = set()
    kept: list[Fault] = []
    for fault in faults:
        if not isinstance(fault, kinds) or not _is_borne(fault, schedule, survivors, gone):
            continue
        if isinstance(fault, Crash) and isinstance(fault.peer, int):
            gone.add(fault.peer)
        kept.append(fault)
    return tuple(kept)


def _is_borne(fault: Fault, schedule: Schedule, survivors: set[int], gone: set[int]) -> bool:
    victim = getattr(fault, "peer", None)
    if not isinstance(fault, DEADLY):
        return True
    if not isinstance(victim, int) or victim in survivors:
        return False
    if not isinstance(fault, Crash):
        return victim not in gone
    stage = next(members for members in schedule.members if victim in members)
    return len(gone.intersection(stage) | {victim}) <= max(1, (len(stage) - 1) // 2)
