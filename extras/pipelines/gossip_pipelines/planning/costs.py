"""Prediction of the time and the memory of a step of a pipeline, from the profiles of its peers.

A step sends B micro-batches through S stages. A stage is a range of layers on a group of peers. One
member of each group computes a micro-batch. The time of a step is

    T = sum_s fill_s + max_s hold_s + max_s exchange_s

``fill_s`` is the time of one micro-batch in stage s and on the link to the next stage, forward and
backward. ``hold_s`` is the additional time of the other micro-batches if stage s, or its link to
the next stage, is the slowest. ``exchange_s`` is the time of the round in which the members of a
group agree on their update. If each group has one member, there is no exchange, and the time is

    T = sum_s (t_s + c_s) + (B - 1) * max_s max(t_s, c_s)

This is the formula of Alpa (Zheng et al. 2022, "Alpa: Automating Inter- and Intra-Operator
Parallelism", arXiv:2201.12023) and PipeDream, with the links as additional stages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gossip.config import Activations
from gossip.core import ON_LINKS
from gossip.errors import ConfigError
from gossip.vectors import shard_sizes

from .fits import CostLine
from .profile import PeerProfile

Numbers = NDArray[np.float64]
Group = tuple[int, ...]
"""Indices of peers in ``Costs.peers``, ascending."""
STATE_COPIES = 4.0
"""Stored values per parameter: the weight, its gradient and two moments of Adam."""
WIRE_BYTES = 4


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """Division of one training step.

    Attributes:
        micro_batches: B, the number of micro-batches.
        samples: Number of samples of a micro-batch.
        members_least: Smallest number of peers of a group: f + 1 to tolerate f crashed peers, 2f +
            1 to tolerate f Byzantine peers.
        state_copies: Stored values per parameter (see ``STATE_COPIES``).
        activations: As in ``PipelineConfig``.
    """

    micro_batches: int
    samples: int
    members_least: int = 1
    state_copies: float = STATE_COPIES
    activations: Activations = "exact"

    @property
    def batch(self) -> int:
        """Number of samples of a step."""
        return self.micro_batches * self.samples


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of P peers and L layers. Times are in seconds, sizes in bytes.

    Attributes:
        peers: Names of the P peers.
        layers: Names of the L layers.
        model: As in ``PeerProfile``.
        fixed_s: Fixed time of a batch, ``(2, P, L)``: forward and backward.
        each_s: Additional time per sample, ``(2, P, L)``.
        parameter_bytes: Size of the parameters of each layer, ``(L,)``.
        output_bytes: Size of the output of each layer per sample, ``(L,)``.
        kept_bytes: Size of the tensors for the backward pass per sample, ``(L,)``.
        memory_bytes: Memory limit of each peer, ``(P,)``.
        link_fixed_s: Fixed time of a message, ``(P, P)``: from the peer of the row to the peer of
            the column.
        link_each_s: Additional time per byte, ``(P, P)``.
    """

    peers: tuple[str, ...]
    layers: tuple[str, ...]
    model: str
    fixed_s: Numbers
    each_s: Numbers
    parameter_bytes: Numbers
    output_bytes: Numbers
    kept_bytes: Numbers
    memory_bytes: Numbers
    link_fixed_s: Numbers
    link_each_s: Numbers

    def seconds(self, samples: float) -> Numbers:
        """Return the time of each layer for a number of samples, ``(2, P, L)``: forward and
        backward."""
        return self.fixed_s + self.each_s * samples

    def link_s(self, rows: Group, columns: Group, nbytes: float) -> Numbers:
        """Return the time of a message from each peer of ``rows`` to each peer of ``columns``,
        ``(rows, columns)``."""
        places = np.ix_(rows, columns)
        return self.link_fixed_s[places] + self.link_each_s[places] * nbytes

    def sent_bytes(self, work: TrainingStep) -> Numbers:
        """Return for each layer the bytes per micro-batch that a stage sends to the next stage if
        it ends with this layer, ``(L,)``. The gradient has the same size. For bf16,
        the outputs of layers are assumed to be fp32."""
        part = 0.5 if work.activations == "bf16" else 1.0
        return part * self.output_bytes * work.samples


def costs_of(profiles: Sequence[PeerProfile], assumed: CostLine | None = None) -> Costs:
    """Combine the profiles of all peers.

    Args:
        profiles: One profile per peer, all with the same layers.
        assumed: Cost of links without a measurement.
    Raises: ConfigError: Two profiles have the same peer or different models, or a link has no
        measurement.
    """
    first = profiles[0]
    names = [profile.peer for profile in profiles]
    for profile in profiles:
        if names.count(profile.peer) > 1:
            raise ConfigError(
                f"two profiles are of the peer {profile.peer}", "use another --name for each peer"
            )
        if profile.model != first.model:
            raise ConfigError(
                f"the profiles of {profile.peer} and {first.peer} are of different models: "
                f"{_differs(first, profile)}",
                "measure the same layers on all peers: gossip plan profile module:function",
            )
    fixed, each = _links(profiles, assumed)
    lines = [
        [[getattr(layer, way) for layer in profile.layers] for profile in profiles]
        for way in ("forward", "backward")
    ]
    return Costs(
        tuple(names),
        tuple(layer.name for layer in first.layers),
        first.model,
        np.array([[[line.fixed_s for line in row] for row in way] for way in lines]),
        np.array([[[line.each_s for line in row] for row in way] for way in lines]),
        np.array([float(layer.parameter_bytes) for layer in first.layers]),
        np.array([layer.output_bytes for layer in first.layers]),
        np.array([layer.kept_bytes for layer in first.layers]),
        np.array([float(profile.memory_bytes) for profile in profiles]),
        fixed,
        each,
    )


def _differs(one: PeerProfile, other: PeerProfile) -> str:
    if len(one.layers) != len(other.layers):
        return f"{len(other.layers)} layers and {len(one.layers)}"
    at = next(
        at
        for at, (a, b) in enumerate(zip(one.layers, other.layers, strict=True))
        if a.signature != b.signature
    )
    return f"layer {at} is {other.layers[at].name} and {one.layers[at].name}"


def _links(profiles: Sequence[PeerProfile], assumed: CostLine | None) -> tuple[Numbers, Numbers]:
    """Return the fixed and the per-byte times of all links, ``(P, P)`` each. If a link was measured
    from one end only, both directions get its times."""
    known: Mapping[tuple[str, str], CostLine] = {
        (profile.peer, to): line for profile in profiles for to, line in profile.links.items()
    }
    count = len(profiles)
    fixed, each = np.zeros((count, count)), np.zeros((count, count))
    for row, here in enumerate(profiles):
        for column, there in enumerate(profiles):
            if row == column:
                continue
            ends = (here.peer, there.peer)
            line = known.get(ends) or known.get(ends[::-1]) or assumed
            if line is None:
                raise ConfigError(
                    f"no link between {here.peer} and {there.peer} was measured",
                    "measure it with gossip plan link, or set --mbit and --delay-ms for links that "
                    "were not measured",
                )
            fixed[row, column], each[row, column] = line.fixed_s, line.each_s
    return fixed, each


@dataclass(frozen=True, slots=True)
class Tables:
    """Costs of each stage for each possible range of layers.

    Attributes:
        fill: ``(S, L + 1, L + 1)`` seconds. ``[s, end, start]`` is stage s with the layers from
            ``start`` to ``end - 1``. It is infinite if these layers do not fit into the memory.
        hold: Same shape as ``fill``.
        exchange: Same shape as ``fill``.
    """

    fill: Numbers
    hold: Numbers
    exchange: Numbers


class StageCosts:
    """Computes the tables of groups. Their parts are cached."""

    def __init__(self, costs: Costs, work: TrainingStep) -> None:
        self.costs, self.work = costs, work
        self.seconds = costs.seconds(work.samples).sum(axis=0)  # (P, L)
        self._speed = 1.0 / np.maximum(self.seconds.sum(axis=1), 1e-12)
        self.runs, self.fits, self.way = cache(self._runs), cache(self._fits), cache(self._way)
        self._of_layers = _sums(self.seconds)  # (P, L + 1, L + 1)
        self._parameters = _sums(costs.parameter_bytes)
        self._kept = _sums(costs.kept_bytes * work.samples)

    def shares(self, group: Group) -> Numbers:
        """Return the fraction of the micro-batches of each member, ``(members,)``. It is
        proportional to the member's speed."""
        speed = self._speed[list(group)]
        return np.asarray(speed / speed.sum())

    def tables(self, groups: Sequence[Group]) -> Tables:
        """Return the tables for stages with these groups, in this order."""
        fill = []
        hold = []
        exchange = []
        for stage, group in enumerate(groups):
            runs = self.runs(group)
            took, held = runs.fill, runs.hold
            if stage + 1 < len(groups):
                way, wait = self.way(group, groups[stage + 1])
                took = took + way[:, None]
                held = np.maximum(held, wait[:, None])
            fits = self.fits(group, self.in_flight(groups, stage))
            fill.append(np.where(fits, took, math.inf))
            hold.append(held)
            exchange.append(runs.exchange)
        return Tables(np.stack(fill), np.stack(hold), np.stack(exchange))

    def _runs(self, group: Group) -> Tables:
        """Return the costs of one group without its links and its memory limit. The fields have one
        stage: ``(L + 1, L + 1)``."""
        parts, times = self.shares(group), self._of_layers[list(group)]
        waiting = np.maximum(0.0, self.work.micro_batches * parts - 1.0)
        return Tables(
            np.tensordot(parts, times, 1),
            (waiting[:, None, None] * times).max(axis=0),
            self._exchange(group),
        )

    def _exchange(self, group: Group) -> Numbers:
        if len(group) == 1:
            return np.zeros_like(self._parameters)
        runs, places = np.unique(self._parameters, return_inverse=True)
        seconds = [rolling_s(self.costs, group, nbytes) for nbytes in runs]
        return np.array(seconds)[places].reshape(self._parameters.shape)

    def in_flight(self, groups: Sequence[Group], stage: int) -> int:
        """Return the largest number of micro-batches with stored activations at one member.

        These micro-batches are in this stage, in later stages and on the links between them. The
        bound assumes that the group has lost as many members as it may lose.
        """
        left = max(1, len(groups[stage]) - self.work.members_least + 1)
        filling = math.ceil(sum(len(group) for group in groups[stage:]) / left)
        on_links = ON_LINKS if stage + 1 < len(groups) else 0
        return min(filling + on_links, self.work.micro_batches)

    def memory_bytes(self, group: Group, in_flight: int) -> Numbers:
        """Return the bytes that each member of a group needs for each range of layers,
        ``(L + 1, L + 1)``: ``[end, start]``."""
        updates = len(group) if len(group) > 1 else 0  # The server of a round stores all updates.
        copies = self.work.state_copies + updates
        return np.asarray(copies * self._parameters + in_flight * self._kept)

    def _fits(self, group: Group, in_flight: int) -> NDArray[np.bool_]:
        """Return a mask of the ranges of layers that are not empty and that fit into the memory of
        each member."""
        limit = self.costs.memory_bytes[list(group)].min()
        places = np.tri(len(self._parameters), k=-1, dtype=bool)
        return np.asarray(places & (self.memory_bytes(group, in_flight) <= limit))

    def _way(self, group: Group, following: Group) -> tuple[Numbers, Numbers]:
        """Return two times for each possible end of the stage, ``(L + 1,)`` each. The first is the
        time of one micro-batch to the next stage and back. The second is the additional time of the
        other micro-batches on the busiest link."""
        parts = np.outer(self.shares(group), self.shares(following))
        sent = np.concatenate([[0.0], self.costs.sent_bytes(self.work)])
        link_s = self.costs.link_s
        ways = [
            link_s(group, following, nbytes) + link_s(following, group, nbytes).T for nbytes in sent
        ]
        taken = np.stack(ways)  # (L + 1, members, members)
        waiting = np.maximum(0.0, self.work.micro_batches * parts - 1.0)
        return (taken * parts).sum(axis=(1, 2)), (taken * waiting).max(axis=(1, 2))


def _sums(of_layers: Numbers) -> Numbers:
    """Return sums over ranges of layers, ``(..., L + 1, L + 1)``. ``[end, start]`` is the sum from
    ``start`` to ``end - 1``."""
    ends = np.concatenate([np.zeros((*of_layers.shape[:-1], 1)), of_layers.cumsum(-1)], axis=-1)
    return np.asarray(np.maximum(0.0, ends[..., :, None] - ends[..., None, :]))


def rolling_s(costs: Costs, group: Group, nbytes: float) -> float:
    """Return the seconds of a rolling round with updates of ``nbytes``. Each server receives the
    updates of its shard one after the other, and sends the result to all members.

    With one shard the result is the mean over all possible servers. Shards are as in ``gossip run``
    with an aggregation rule that works on columns. Servers of different shards work in parallel.
    """
    if len(group) == 1 or nbytes == 0:
        return 0.0
    largest = max(shard_sizes(max(1, math.ceil(nbytes / WIRE_BYTES)), len(group), False))
    away = 1.0 - np.eye(len(group))
    one_way = costs.link_s(group, group, WIRE_BYTES * largest) * away
    both = one_way.sum(axis=0) + one_way.sum(axis=1)
    shards = math.ceil(nbytes / WIRE_BYTES / largest)
    return float(both.mean() if shards == 1 else both.max())
