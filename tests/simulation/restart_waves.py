"""Schedules in which many peers are started again at about the same time, wave after wave."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from gossip.faults import Fault, HangTrainer, KillTrainer, Restart
from gossip_lab.simulation import generate
from gossip_lab.simulation.schedules.schedule import Schedule

WAVES_MAX = 3
OTHER_KILLS = 0.2  # of those in a wave: the trainer dies, and its node says so
HANGS = 0.3  # of the schedules: a trainer hangs besides
CALM_S = 12.0


def with_waves(seed: int) -> Schedule | None:
    """The world of the schedule that is drawn from ``seed``, with such faults in place of its own:
    all but one peer, or f + 1, may be among them. None where its rounds have no server."""
    drawn, lot = generate(seed), Random(f"waves/{seed}")
    if drawn.topology != "rolling" or drawn.stages or drawn.joins_s:
        return None
    spared = lot.sample(range(drawn.peers), min(drawn.peers - 1, drawn.f + 1))
    others = [peer for peer in range(drawn.peers) if peer not in spared]
    faults: list[Fault] = []
    at_s = lot.uniform(2.0, 6.0)
    for _ in range(lot.randint(1, WAVES_MAX)):
        for peer in lot.sample(others, lot.randint(1, len(others))):
            faults.append(_end_of(peer, at_s + lot.uniform(0.0, 0.4), lot))
        at_s += lot.uniform(0.2, 2.5)
    if lot.random() < HANGS:
        hung = lot.randrange(drawn.peers)
        faults.append(
            HangTrainer(hung, round(lot.uniform(2.0, at_s), 3), round(lot.uniform(0.3, 2.0), 3))
        )
    return replace(
        drawn,
        faults=tuple(faults),
        active_s=round(at_s + 1.0, 3),
        duration_s=round(at_s + CALM_S, 3),
        rounds_min=0,
    )


def _end_of(peer: int, at_s: float, lot: Random) -> Fault:
    if lot.random() < OTHER_KILLS:
        return KillTrainer(peer, round(at_s, 3), round(lot.uniform(0.01, 0.4), 3))
    back_s = lot.choice((0.01, lot.uniform(0.05, 0.6), 1.2))
    return Restart(peer, None, round(back_s, 3), round(at_s, 3))
