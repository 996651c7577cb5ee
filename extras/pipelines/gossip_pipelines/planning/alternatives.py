"""Predicted time of a data-parallel step, from the same profiles as for a pipeline. Each peer has
the whole model and computes a part of the batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gossip.core import Pace

from .costs import Costs, Group, Numbers, TrainingStep, rolling_s

LOCAL_STEPS = 30
SETTLED_ROUNDS = 48
"""Number of rounds, three windows of ``Pace``, after which ``Pace`` has settled if the speeds of
peers are constant."""


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Predicted times of one kind of training without stages.

    Attributes:
        name: Name of the schedule, as in ``gossip run``.
        peers: Peers that can hold the whole model.
        compute_s: Time from the beginning of a step until the last peer has its gradient.
        exchange_s: Time of the exchange, per step.
    """

    name: str
    peers: Group
    compute_s: float
    exchange_s: float

    @property
    def step_s(self) -> float:
        return self.compute_s + self.exchange_s


def data_parallel(costs: Costs, work: TrainingStep, local_steps: int) -> list[DataParallel]:
    """Predict the times of rolling rounds and of local steps on all peers with enough memory for
    the model.

    The batch is divided as ``gossip run`` divides it by default. In rolling rounds a slow peer gets
    a half or a quarter of the usual part. With local steps the parts are such that all peers end at
    the same time.

    Returns: One entry for each kind of training; empty if the model does not fit any peer.
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
    """Return the peers with enough memory for the whole model, its optimizer, the updates of a
    round and the activations of their part of the batch. A peer with too little memory is left out,
    and its part is divided among the remaining peers."""
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
    """Divide a batch as rolling rounds do after ``SETTLED_ROUNDS``.

    Returns: Seconds until the last peer ends, and the samples of each peer, ``(members,)``.
    """
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
    """Return the time that each peer needs for its part of a batch, in seconds, ``(members,)``."""
    places = list(group)
    fixed, each = costs.fixed_s.sum(axis=(0, 2)), costs.each_s.sum(axis=(0, 2))
    return np.asarray(fixed[places] + each[places] * samples)


def divided_s(costs: Costs, group: Group, batch: int) -> float:
    """Return the time of a batch in seconds if it is divided so that all peers end at the same
    time. A peer gets no samples if its fixed time alone is longer than the result."""
    fixed = costs.fixed_s.sum(axis=(0, 2))[list(group)]
    each = np.maximum(costs.each_s.sum(axis=(0, 2))[list(group)], 1e-15)
    order = fixed.argsort(kind="stable")
    for count in range(len(group), 0, -1):
        some = order[:count]
        ends = (batch + (fixed[some] / each[some]).sum()) / (1 / each[some]).sum()
        if ends >= fixed[some].max():
            break
    return float(ends)
