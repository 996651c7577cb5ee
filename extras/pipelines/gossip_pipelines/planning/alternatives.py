"""Time of a step without a pipeline, by the same profiles: each peer holds the whole model and
computes a part of the batch, and updates are exchanged."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gossip.core import Pace, settled_pace

from .costs import WIRE_BYTES, Costs, Group, Numbers, TrainingStep, rolling_s

LOCAL_STEPS = 30


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
    """Rolling rounds, random-k and local steps, of all peers that can hold the model. Empty when
    none can.

    Batches are divided as ``gossip run`` does by default: of rolling rounds who is slow gets a half
    or a quarter, of random-k all get alike, and of local steps each takes as many as it can.
    """
    group = whole_model_peers(costs, work)
    if not group:
        return []
    nbytes = float(costs.parameter_bytes.sum())
    rolling = rolling_s(costs, group, nbytes)
    paced_s, _ = paced(costs, group, work.batch)
    ways = {
        "rolling": (paced_s, rolling),
        "random-k": (
            float(_seconds(costs, group, np.full(len(group), work.batch / len(group))).max()),
            random_k_s(costs, group, nbytes),
        ),
        f"rolling, {local_steps} local steps": (
            divided(costs, group, work.batch)[0],
            rolling / local_steps,
        ),
    }
    if len(group) == 1:
        ways = {"one peer": (paced_s, 0.0)}
    return [DataParallel(name, group, *times) for name, times in ways.items()]


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

    def member_times_us(pace: Pace) -> dict[int, int]:
        seconds = _seconds(costs, group, _by_level(pace, group, batch))
        return {peer: round(1e6 * float(s)) for peer, s in zip(group, seconds, strict=True)}

    samples = _by_level(settled_pace(group, member_times_us), group, batch)
    return float(_seconds(costs, group, samples).max()), samples


def _by_level(pace: Pace, group: Group, batch: int) -> Numbers:
    parts = np.array([0.5 ** pace.level(peer) for peer in group])
    return np.asarray(batch * parts / parts.sum())


def _seconds(costs: Costs, group: Group, samples: Numbers) -> Numbers:
    """``(members,)``: what each takes for its part of a batch."""
    places = list(group)
    fixed, each = costs.fixed_s.sum(axis=(0, 2)), costs.each_s.sum(axis=(0, 2))
    return np.asarray(fixed[places] + each[places] * samples)


def divided(costs: Costs, group: Group, batch: int) -> tuple[float, Numbers]:
    """Divides a batch so that all end at the same time: the seconds, and ``(members,)`` samples.

    A peer whose fixed time alone is longer gets none.
    """
    fixed = costs.fixed_s.sum(axis=(0, 2))[list(group)]
    each = np.maximum(costs.each_s.sum(axis=(0, 2))[list(group)], 1e-15)
    order = fixed.argsort(kind="stable")
    for count in range(len(group), 0, -1):
        some = order[:count]
        ends = (batch + (fixed[some] / each[some]).sum()) / (1 / each[some]).sum()
        if ends >= fixed[some].max():
            break
    return float(ends), np.maximum(0.0, (ends - fixed) / each) * np.isin(
        np.arange(len(group)), some
    )


def random_k_s(costs: Costs, group: Group, nbytes: float) -> float:
    """Seconds until the slowest peer has sent its update to k others and has got as many, with the
    default k of ``gossip run``, ceil(log2 n)."""
    if len(group) == 1:
        return 0.0
    pushes = max(1, math.ceil(math.log2(len(group))))
    places = np.ix_(group, group)
    sent = math.ceil(nbytes / WIRE_BYTES) * WIRE_BYTES
    one_way = costs.link_fixed_s[places] + costs.link_each_s[places] * sent
    np.fill_diagonal(one_way, 0.0)
    typical = (one_way.sum(axis=0) + one_way.sum(axis=1)) / (2 * (len(group) - 1))
    return float(pushes * typical.max())
