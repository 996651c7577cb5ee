"""The steps of a rule whose shards decide together, as servers take them: the decision of the
whole, whatever the shards."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from effort import effort, rotated
from torch import Tensor

from gossip.aggregators import Verdict, load, names
from gossip.core.events import Aggregate, Aggregated, Payload, Row, ShardStatistics
from gossip.node.reducer import Reducer
from gossip.node.worker import Worker

COMPOSED = ("nnm+krum", "bucketing:s=2+geometric_median", "arc+centered_clipping")
"""By what makes a difference: a permutation of the round, and points beside the updates."""
RULES = [name for name in (*names(), *COMPOSED) if load(name).cross_shard]
D, N, F = 1003, 15, 3
ROUND = 7
WIDTHS = (1, 3, 8)
JUDGED = torch.randn(D, generator=torch.Generator().manual_seed(99))
"""The judge's gradient, of which each server has the columns of its shard."""


def explained(name: str, x: Tensor, previous: Tensor | None = None) -> Verdict:
    judged = JUDGED.to(x.dtype)
    return load(name).explain(x, f=F, previous=previous, gradient=judged, round_id=ROUND)


def updates(kind: str, seed: int) -> Tensor:
    """Three liars first."""
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(seed))
    if kind == "parameters":
        x = 10 + 1e-3 * x
    if kind == "attackers":
        x[:F] = 1e6 * x[:1]
    if kind == "uneven":  # most of what tells them apart is in one shard
        x[:, 5] *= 30
    return x


def cut(vector: Tensor, shards: int) -> list[Tensor]:
    edges = [round(D * at**1.5 / shards**1.5) for at in range(shards + 1)]  # of unequal length
    return [vector[first:last] for first, last in itertools.pairwise(edges)]


def payload(vector: Tensor) -> Payload:
    return Payload(vector.contiguous().numpy(), 4 * len(vector))


@cache
def worker() -> Worker:
    """One for all tests: each has descriptors that it keeps until it is collected."""
    return Worker()


class Servers:
    """One for each shard. ``missing``: peers whose updates have not come to a shard."""

    def __init__(
        self,
        name: str,
        x: Tensor,
        shards: int,
        previous: Tensor | None,
        missing: dict[int, set[int]],
    ) -> None:
        self.answers: list[Aggregated] = []
        self.locked: frozenset[int] = frozenset()
        self.reducer = Reducer(load(name), worker(), self.answers.append, centered=False)
        columns = [cut(row, shards) for row in x]
        last = cut(previous, shards) if previous is not None else None
        judged = "gradient" in load(name).needs
        self.gradients = [
            part.contiguous().numpy() if judged else None for part in cut(JUDGED, shards)
        ]
        self.asks = []
        for shard in range(shards):
            here = [peer for peer in range(N) if peer not in missing.get(shard, ())]
            rows = tuple(Row(peer, payload(columns[peer][shard]), 4) for peer in here)
            own = payload(last[shard]) if last is not None else None
            self.asks.append(Aggregate(shard, ROUND, shard, rows, F, previous=own))

    def ask(self, shard: int, **step: Any) -> Aggregated:
        self.reducer.reduce(replace(self.asks[shard], **step), self.gradients[shard])
        return self.answers.pop()

    def measured(self) -> list[ShardStatistics]:
        found = [self.ask(shard, step="measure").statistics for shard in range(len(self.asks))]
        return [
            ShardStatistics(tuple(row.peer for row in ask.rows), part)
            for ask, part in zip(self.asks, found, strict=True)
        ]

    def decided(self, parts: list[ShardStatistics]) -> tuple[Aggregated, tuple[int, ...]]:
        everybody = set.intersection(*[set(part.peers) for part in parts])
        common = tuple(sorted(everybody - self.locked))
        return self.ask(0, step="decide", parts=tuple(parts), peers=common), common

    def aggregate(self) -> tuple[Tensor, Aggregated]:
        """What the shards' servers make of it, put together, and the decision."""
        decided, common = self.decided(self.measured())
        assert decided.payload is not None, decided.reason
        counted = dict(zip(common, decided.decision, strict=False))
        beside = decided.decision[len(common) :]
        pieces = [decided.payload]
        for shard in range(1, len(self.asks)):
            weights = (*[counted.get(row.peer, 0.0) for row in self.asks[shard].rows], *beside)
            combined = self.ask(shard, step="combine", decision=weights)
            assert combined.payload is not None, combined.reason
            pieces.append(combined.payload)
        return torch.cat([torch.from_numpy(piece.data) for piece in pieces]), decided


@pytest.mark.parametrize("kind", ["noise", "parameters", "attackers", "uneven"])
@pytest.mark.parametrize("name", rotated(RULES))
def test_servers_of_shards_make_the_decision_of_the_whole_vector(name: str, kind: str) -> None:
    for seed in range(effort(1, 3)):
        x = updates(kind, seed)
        previous = 0.5 * x[-2]
        exact = explained(name, x.to(torch.float64), previous.to(torch.float64))
        # float32 rounds the updates' own size
        size = max(float(exact.aggregate.norm()), float(x.norm(dim=1).median()))
        for shards in WIDTHS:
            aggregate, decided = Servers(name, x, shards, previous, {}).aggregate()
            told = f"{name}, {kind}, seed {seed}, {shards} shards"
            np.testing.assert_allclose(
                decided.weights, exact.weights.numpy(), atol=1e-5, err_msg=told
            )
            assert [weight > 0 for weight in decided.weights] == (exact.weights > 0).tolist(), told
            apart = float((aggregate.to(torch.float64) - exact.aggregate).norm()) / size
            assert apart <= 1e-6, f"{told}: {apart:.2g} away from the float64 oracle"


@pytest.mark.parametrize("name", rotated(RULES))
def test_servers_of_shards_measure_what_is_outside_and_leave_it_out(name: str) -> None:
    x = updates("noise", 3)
    x[:F] = 30 * x[:F]  # they are in quarantine, but for the first
    locked = tuple(range(1, F))
    alone, decided = Servers(name, x, 3, None, {s: set(locked) for s in range(3)}).aggregate()
    servers = Servers(name, x, 3, None, {})
    servers.asks = [replace(ask, outside=ask.rows[1:F]) for ask in servers.asks]
    servers.locked = frozenset(locked)
    aggregate, measured = servers.aggregate()
    torch.testing.assert_close(aggregate, alone)
    np.testing.assert_allclose(measured.weights, decided.weights, atol=1e-6)
    assert len(measured.outside) == len(locked)
    everybody = explained(name, x).outlyingness
    # Those have the median of the others here, and buckets are made by the order of the updates.
    if name not in FROM_THE_MEDIAN and load(name).rule.symmetric:
        np.testing.assert_allclose(measured.outside, everybody[list(locked)], rtol=1e-3)
    if load(name).discerning:
        assert min(measured.outside) > 3.0


FROM_THE_MEDIAN = [name for name in RULES if "median" in load(name).rule.by_sums.points]  # type: ignore[union-attr]
"""They start from the median of all that a shard has, whoever counts."""


@pytest.mark.parametrize("name", [name for name in RULES if name not in FROM_THE_MEDIAN])
def test_what_has_not_come_to_every_shard_does_not_count_in_any(name: str) -> None:
    x = updates("noise", 1)
    servers = Servers(name, x, 3, None, {1: {14}, 2: {9, 14}})
    aggregate, decided = servers.aggregate()
    here = [peer for peer in range(N) if peer not in (9, 14)]
    assert len(decided.weights) == len(here)
    alone = explained(name, x[here])
    np.testing.assert_allclose(decided.weights, alone.weights.numpy(), atol=1e-5)
    np.testing.assert_allclose(aggregate.numpy(), alone.aggregate.numpy(), atol=1e-5)


def test_a_server_without_the_last_aggregate_makes_all_do_without() -> None:
    x, previous = updates("noise", 2), torch.full((D,), 0.2)
    servers = Servers("centered_clipping", x, 3, previous, {})
    servers.asks[1] = replace(servers.asks[1], previous=None)
    aggregate, decided = servers.aggregate()
    without, _ = Servers("centered_clipping", x, 3, None, {}).aggregate()
    assert torch.equal(aggregate, without)
    assert decided.decision[-1] == 0.0
    remembering, _ = Servers("centered_clipping", x, 3, previous, {}).aggregate()
    assert not torch.allclose(aggregate, remembering)


def numbers_of(part: ShardStatistics) -> np.ndarray:
    return np.frombuffer(part.statistics, "<f8").copy()


@pytest.mark.parametrize("name", rotated(RULES))
def test_numbers_that_a_liar_made_up_never_raise(name: str) -> None:
    draw = np.random.default_rng(5)
    x = updates("noise", 4)
    for scale in (1.0, -1.0, 1e30, 1e300, 1e307, 0.0):
        servers = Servers(name, x, 3, x[3], {})
        parts = servers.measured()
        forged = scale * draw.standard_normal(len(numbers_of(parts[1])))
        parts[1] = replace(parts[1], statistics=forged.astype("<f8").tobytes())
        decided, _ = servers.decided(parts)
        assert decided.payload is not None or decided.reason
        assert np.isfinite([*decided.weights, *decided.outlyingness, *decided.decision]).all()


def test_whoever_decides_can_make_no_more_of_updates_than_their_sum() -> None:
    servers = Servers("krum", updates("noise", 6), 3, None, {})
    for weights in (
        (1e6,) + (0.0,) * (N - 1),
        (40.0, -40.0) + (0.0,) * (N - 2),
        (0.5,) * (N - 1),
        (0.5,) * (N + 1),
    ):
        assert servers.ask(1, step="combine", decision=weights).payload is None
    assert servers.ask(1, step="combine", decision=(1.0,) * N).payload is not None
