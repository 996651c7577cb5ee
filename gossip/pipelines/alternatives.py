"""What a step takes without a pipeline, by the same profiles: each peer holds the whole model and
computes a part of the batch, and updates are exchanged."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

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

    Batches are divided by speed, as ``gossip run`` does by default.
    """
    group = whole_model_peers(costs, work)
    if not group:
        return []
    compute_s, _ = divided(costs, group, work.batch)
    nbytes = float(costs.parameter_bytes.sum())
    rolling = rolling_s(costs, group, nbytes)
    ways = {
        "rolling": rolling,
        "random-k": random_k_s(costs, group, nbytes),
        f"rolling, {local_steps} local steps": rolling / local_steps,
    }
    if len(group) == 1:
        ways = {"one peer": 0.0}
    return [DataParallel(name, group, compute_s, exchange) for name, exchange in ways.items()]


def whole_model_peers(costs: Costs, work: TrainingStep) -> Group:
    """Those whose memory holds the whole model, its optimizer, the updates of a round and what
    their part of the batch keeps. Who has too little leaves its part to the others."""
    group = tuple(range(len(costs.peers)))
    while group:
        _, samples = divided(costs, group, work.batch)
        updates = len(group) if len(group) > 1 else 0
        state = float(costs.parameter_bytes.sum()) * (work.state_copies + updates)
        need = state + samples * float(costs.kept_bytes.sum())
        over = need / costs.memory_bytes[list(group)]
        if over.max() <= 1:
            return group
        group = tuple(peer for at, peer in enumerate(group) if at != int(over.argmax()))
    return group


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
