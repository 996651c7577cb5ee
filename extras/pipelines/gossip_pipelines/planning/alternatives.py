"""Time of a step without a pipeline, by the same profiles: each peer holds the whole model and
computes a part of the batch, and updates are exchanged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gossip.core import Pace

from .costs import Costs, Group, Numbers, TrainingStep, rolling_s

LOCAL_STEPS = 30
SETTLED_ROUNDS = 48
"""Rounds after which steady peers keep their pace: three of its windows."""


@dataclass(frozen=True, slots=True)
class DataParallel:
    """One way of training without stages.

    Attributes:
        name: As ``gossip run`` takes it.
        peers: Who can hold the whole model.
        compute_s: Of a step, until the last of them has its gradient.
        exchange_s: Of a step.
    """

    name: str
    peers: Group
    compute_s: float
    exchange_s: float

    @property
    def step_s(self) -> float:
        return self.compute_s + self.exchange_s


def data_parallel(costs: Costs, work: TrainingStep, local_steps: int) -> list[DataParallel]:
    """Rolling rounds and local steps, of all peers that can hold the model. Empty when none can.

    Batches are divided as ``gossip run`` does by default: of rolling rounds who is slow gets a half
    or a quarter, and of local steps each takes as many as it can.
    """
    group = whole_model_peers(costs, work)
    if not group:
        return []
    nbytes = float(costs.parameter_bytes.sum())
    rolling = rolling_s(costs, group, nbytes)
    paced_s, _ = paced(costs, group, work.batch)
    if len(group) == 1:
        return [DataParallel("one peer", group, paced_s, 0.0)]
    apart_s = divided_s(costs, group, work.batch)
    return [
        DataParallel("rolling", group, paced_s, rolling),
        DataParallel(f"rolling, {local_steps} local steps", group, apart_s, rolling / local_steps),
    ]


def whole_model_peers(costs: Costs, work: TrainingStep) -> Group:
    """Those whose memory holds the whole model, its optimizer, the updates of a round and what
    their part of the batch keeps. Who has too little leaves its part to the others."""
    group = tuple(range(len(costs.peers)))
    while group:
        _, samples = paced(costs, group, work.batch)
        updates = len(group) if len(group) > 1 else 0
        state = float(costs.parameter_bytes.sum()) * (work.state_copies + updates)
        need = state + samples * float(costs.kept_bytes.sum())
        over = need / costs.memory_bytes[list(group)]
        if over.max() <= 1:
            return group
        group = tuple(peer for at, peer in enumerate(group) if at != int(over.argmax()))
    return group


def paced(costs: Costs, group: Group, batch: int) -> tuple[float, Numbers]:
    """Divides a batch as rolling rounds come to do it: the seconds of the last peer, and
    ``(members,)`` samples."""
    pace = Pace()
    for _ in range(SETTLED_ROUNDS):
        seconds = _seconds(costs, group, _by_level(pace, group, batch))
        times_us = {peer: round(1e6 * float(s)) for peer, s in zip(group, seconds, strict=True)}
        pace.observe(group, group, times_us)
    samples = _by_level(pace, group, batch)
    return float(_seconds(costs, group, samples).max()), samples


def _by_level(pace: Pace, group: Group, batch: int) -> Numbers:
    parts = np.array([0.5 ** pace.level(peer) for peer in group])
    return np.asarray(batch * parts / parts.sum())


def _seconds(costs: Costs, group: Group, samples: Numbers) -> Numbers:
    """``(members,)``: what each takes for its part of a batch."""
    places = list(group)
    fixed, each = costs.fixed_s.sum(axis=(0, 2)), costs.each_s.sum(axis=(0, 2))
    return np.asarray(fixed[places] + each[places] * samples)


def divided_s(costs: Costs, group: Group, batch: int) -> float:
    """Seconds of a batch that is divided so that all end at the same time. A peer whose fixed time
    alone is longer gets nothing of it."""
    fixed = costs.fixed_s.sum(axis=(0, 2))[list(group)]
    each = np.maximum(costs.each_s.sum(axis=(0, 2))[list(group)], 1e-15)
    order = fixed.argsort(kind="stable")
    for count in range(len(group), 0, -1):
        some = order[:count]
        ends = (batch + (fixed[some] / each[some]).sum()) / (1 / each[some]).sum()
        if ends >= fixed[some].max():
            break
    return float(ends)
