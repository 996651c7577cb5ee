"""Predicted time and memory of a step of a pipeline, from the profiles of its peers.

A step sends B micro-batches through S stages. A stage is a range of layers on a group of peers, and
one member of each group computes a micro-batch. The time of a step is

    T = sum_s fill_s + max_s hold_s + max_s exchange_s

``fill_s`` is the time of one micro-batch in stage s and in transit to the next stage, forward and
backward. ``hold_s`` is the time that the other micro-batches add if stage s, or the link to the
next stage, is the slowest. ``exchange_s`` is the round in which the members of a group agree on
their update. With one member in each group there is no exchange, and the time is

    T = sum_s (t_s + c_s) + (B - 1) * max_s max(t_s, c_s)

which is the formula of Alpa (Zheng et al. 2022, "Alpa: Automating Inter- and Intra-Operator
Parallelism", arXiv:2201.12023) and PipeDream, with links between the stages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
"""Indices of the peers in ``Costs.peers``, ascending."""
STATE_COPIES = 4.0
"""Numbers for each parameter: a weight, its gradient and two moments of Adam."""
WIRE_BYTES = 4


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One step of the training.

    Attributes:
        micro_batches: B, the number of micro-batches.
        samples: Samples of a micro-batch.
        members_least: Peers that each group needs: f + 1 to tolerate crashes, 2f + 1 to tolerate
            Byzantine peers.
        state_copies: Numbers that are stored for each parameter.
        activations: As in ``PipelineConfig``.
    """

    micro_batches: int
    samples: int
    members_least: int = 1
    state_copies: float = STATE_COPIES
    activations: Activations = "exact"

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.micro_batches * self.samples


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of P peers and L layers. Times are in seconds, sizes in bytes.

    Attributes:
        peers: Names of the P peers.
        layers: Names of the L layers.
        model: As in ``PeerProfile``.
        fixed_s: ``(2, P, L)``, forward and backward: time of a batch of any size.
        each_s: ``(2, P, L)``: additional time of each sample.
        parameter_bytes: ``(L,)``.
        output_bytes: ``(L,)``, for each sample.
        kept_bytes: ``(L,)``, for each sample.
        memory_bytes: ``(P,)``, the limit of each peer.
        link_fixed_s: ``(P, P)``, from the peer of a row to the peer of a column.
        link_each_s: ``(P, P)``, for each byte.
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
        """Return the times of all layers for a number of samples, ``(2, P, L)``, forward and
        backward."""
        return self.fixed_s + self.each_s * samples

    def sent_bytes(self, work: TrainingStep) -> Numbers:
        """Return the bytes of a micro-batch after each layer, ``(L,)``: to the next stage, and as
        many back. The outputs of layers count as fp32."""
        part = 0.5 if work.activations == "bf16" else 1.0
        return part * self.output_bytes * work.samples


def costs_of(profiles: Sequence[PeerProfile], assumed: CostLine | None = None) -> Costs:
    """Return the costs of peers.

    Args:
        profiles: One profile of each peer, of the same layers.
        assumed: Cost of links that were not measured.
    Raises: ConfigError: Two profiles are of one peer or of different models, or a link is missing.
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
    """Return the fixed and the per-byte times of all links, ``(P, P)`` each. A link that was
    measured from one end has the same times in both directions."""
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
    """Costs of each stage for each range of layers.

    Attributes:
        fill: ``(S, L + 1, L + 1)`` seconds: ``[s, end, start]`` is stage s with the layers from
            ``start`` up to, but without, ``end``; infinite if they do not fit its memory.
        hold: The same shape, as has ``exchange``.
    """

    fill: Numbers
    hold: Numbers
    exchange: Numbers


class StageCosts:
    """The tables of groups. Each part is computed once."""

    def __init__(self, costs: Costs, work: TrainingStep) -> None:
        self.costs, self.work = costs, work
        self.seconds = costs.seconds(work.samples).sum(axis=0)  # (P, L)
        self._speed = 1.0 / np.maximum(self.seconds.sum(axis=1), 1e-12)
        self._known: dict[Group, GroupRuns] = {}
        self._fits: dict[tuple[Group, int], NDArray[np.bool_]] = {}
        self._ways: dict[tuple[Group, Group], tuple[Numbers, Numbers]] = {}
        self._of_layers = _sums(self.seconds)  # (P, L + 1, L + 1)
        self._parameters = _sums(costs.parameter_bytes)
        self._kept = _sums(costs.kept_bytes * work.samples)

    def shares(self, group: Group) -> Numbers:
        """Return each member's share of the micro-batches, ``(members,)``, by its speed."""
        speed = self._speed[list(group)]
        return np.asarray(speed / speed.sum())

    def tables(self, groups: Sequence[Group]) -> Tables:
        """Return the tables of stages with these groups, in this order."""
        fill, hold, exchange = [], [], []
        for stage, group in enumerate(groups):
            runs = self.runs(group)
            took, held = runs.fill, runs.hold
            if stage + 1 < len(groups):
                way, wait = self.way(group, groups[stage + 1])
                took, held = took + way[:, None], np.maximum(held, wait[:, None])
            fits = self.fits(group, self.in_flight(groups, stage))
            fill.append(np.where(fits, took, math.inf))
            hold.append(held)
            exchange.append(runs.exchange)
        return Tables(np.stack(fill), np.stack(hold), np.stack(exchange))

    def runs(self, group: Group) -> GroupRuns:
        """Return the costs of one group, without links and limits."""
        if (runs := self._known.get(group)) is None:
            parts, times = self.shares(group), self._of_layers[list(group)]
            waiting = np.maximum(0.0, self.work.micro_batches * parts - 1.0)
            runs = self._known[group] = GroupRuns(
                np.tensordot(parts, times, 1),
                (waiting[:, None, None] * times).max(axis=0),
                self._exchange(group),
            )
        return runs

    def _exchange(self, group: Group) -> Numbers:
        if len(group) == 1:
            return np.zeros_like(self._parameters)
        runs, places = np.unique(self._parameters, return_inverse=True)
        seconds = [rolling_s(self.costs, group, nbytes) for nbytes in runs]
        return np.array(seconds)[places].reshape(self._parameters.shape)

    def in_flight(self, groups: Sequence[Group], stage: int) -> int:
        """Return the largest number of micro-batches with activations at one member.

        They fill this stage, the later stages and the links between. The bound is for the smallest
        number of members that the group may have.
        """
        left = max(1, len(groups[stage]) - self.work.members_least + 1)
        filling = math.ceil(sum(len(group) for group in groups[stage:]) / left)
        on_links = ON_LINKS if stage + 1 < len(groups) else 0
        return min(filling + on_links, self.work.micro_batches)

    def memory_bytes(self, group: Group, in_flight: int) -> Numbers:
        """Return the bytes that each member of a group needs, ``(L + 1, L + 1)``, ``[end,
        start]``."""
        updates = len(group) if len(group) > 1 else 0  # the server of a round holds all of them
        copies = self.work.state_copies + updates
        return np.asarray(copies * self._parameters + in_flight * self._kept)

    def fits(self, group: Group, in_flight: int) -> NDArray[np.bool_]:
        """Return which ranges of layers are not empty and fit the memory of each member."""
        key = (group, in_flight)
        if (found := self._fits.get(key)) is None:
            limit = self.costs.memory_bytes[list(group)].min()
            places = np.tri(len(self._parameters), k=-1, dtype=bool)
            found = places & (self.memory_bytes(group, in_flight) <= limit)
            self._fits[key] = found
        return found

    def way(self, group: Group, following: Group) -> tuple[Numbers, Numbers]:
        """Return the time of one micro-batch to the next stage and back, and the time that the
        others add on the busiest link: ``(L + 1,)`` each, by the end of the stage."""
        if (found := self._ways.get((group, following))) is None:
            parts = np.outer(self.shares(group), self.shares(following))
            sent = np.concatenate([[0.0], self.costs.sent_bytes(self.work)])
            pairs = np.ix_(group, following)
            ways = [
                (self.costs.link_fixed_s[pairs] + self.costs.link_each_s[pairs] * nbytes)
                + (self.costs.link_fixed_s.T[pairs] + self.costs.link_each_s.T[pairs] * nbytes)
                for nbytes in sent
            ]
            taken = np.stack(ways)  # (L + 1, members, members)
            waiting = np.maximum(0.0, self.work.micro_batches * parts - 1.0)
            found = (taken * parts).sum(axis=(1, 2)), (taken * waiting).max(axis=(1, 2))
            self._ways[group, following] = found
        return found


@dataclass(frozen=True, slots=True)
class GroupRuns:
    """Costs of one group without its links, as in ``Tables``: ``(L + 1, L + 1)`` seconds each,
    ``[end, start]``."""

    fill: Numbers
    hold: Numbers
    exchange: Numbers


def _sums(of_layers: Numbers) -> Numbers:
    """Return sums over layers, ``(..., L + 1, L + 1)``: ``[end, start]`` is the sum from ``start``
    up to ``end``."""
    ends = np.concatenate([np.zeros((*of_layers.shape[:-1], 1)), of_layers.cumsum(-1)], axis=-1)
    return np.asarray(np.maximum(0.0, ends[..., :, None] - ends[..., None, :]))


def rolling_s(costs: Costs, group: Sequence[int], nbytes: float) -> float:
    """Return the seconds of a rolling round with updates of ``nbytes``: each server receives the
    updates of its shard one after the other, and sends its result to all members.

    With one shard this is the mean over all servers. Shards are those of ``gossip run`` for a rule
    that works on columns; the servers of several shards work in parallel.
    """
    if len(group) == 1 or nbytes == 0:
        return 0.0
    largest = max(shard_sizes(max(1, math.ceil(nbytes / WIRE_BYTES)), len(group), False))
    places = np.ix_(group, group)
    away = 1.0 - np.eye(len(group))
    one_way = (costs.link_fixed_s[places] + costs.link_each_s[places] * WIRE_BYTES * largest) * away
    both = one_way.sum(axis=0) + one_way.sum(axis=1)
    shards = math.ceil(nbytes / WIRE_BYTES / largest)
    return float(both.mean() if shards == 1 else both.max())
