"""Policies of data in the playground: orders of a shared data set, and swaps between peers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch

from gossip.errors import ConfigError
from gossip_lab.clusters import cluster
from gossip_lab.playground import World
from gossip_lab.playground.fast_gossip import GossipWorld
from gossip_lab.playground.fast_rolling import RollingWorld
from gossip_lab.playground.policies import (
    Move,
    MovePolicy,
    SharedOrder,
    carry_out,
    count_bytes,
    plan_moves,
)

LABELS = np.arange(1000) % 10
SMALL = World(peers=6, model="linear", batch=4, compute="constant:0.05")
PEERS = np.arange(8)


# --- one data set for all peers -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["stratified", "similar"])
def test_an_epoch_of_a_shared_order_reads_each_sample_once(kind: str) -> None:
    shared = SharedOrder(LABELS, kind, 8, 25, seed=3)
    rounds = np.array([shared.draw_batches(PEERS, round_id) for round_id in range(15)])
    for epoch in rounds.reshape(3, -1):
        assert sorted(epoch.tolist()) == list(range(1000))
    assert not np.array_equal(rounds[:5], rounds[5:10])
    classes = [[len(set(LABELS[row].tolist())) for row in one] for one in rounds]
    if kind == "stratified":
        assert np.min(classes) == 10
    else:
        assert np.max(classes) <= 4
        assert all(len(set(LABELS[one.ravel()].tolist())) == 10 for one in rounds)


def test_a_slice_over_the_end_of_an_epoch_goes_on_in_the_next() -> None:
    shared = SharedOrder(LABELS[:100], "stratified", 3, 7, seed=0)
    read = np.concatenate([shared.draw_batches(np.arange(3), at).ravel() for at in range(100)])
    assert all(count == 21 for count in np.bincount(read))


def test_batches_do_not_depend_on_who_is_asked_and_rotate() -> None:
    shared = SharedOrder(LABELS, "similar", 8, 5, seed=3)
    whole = shared.draw_batches(PEERS, 4)
    some = shared.draw_batches(np.array([6, 2]), np.array([4, 4]))
    assert np.array_equal(some, whole[[6, 2]])
    mixed = shared.draw_batches(np.array([6, 2]), np.array([4, 9]))
    assert np.array_equal(mixed[1], shared.draw_batches(PEERS, 9)[2])
    firsts = {int(LABELS[shared.draw_batches(PEERS[:1], at)[0, 0]]) for at in range(8)}
    assert len(firsts) >= 4, "the first peer gets other classes in other rounds"


# --- clusters -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_clusters_are_those_that_are_there(seed: int) -> None:
    generator = torch.Generator().manual_seed(0)
    which = torch.arange(400) % 8
    middles = torch.stack([100.0 * (which % 4), 100.0 * (which // 4)], dim=1)
    points = middles + torch.randn(400, 2, generator=generator)
    found = cluster(points, 8, seed)
    assert torch.equal(found, cluster(points, 8, seed))
    for each in range(8):
        assert len(set(found[which == each].tolist())) == 1
    assert len(set(found.tolist())) == 8


def test_every_sample_is_in_the_cluster_with_the_nearest_mean() -> None:
    points = torch.rand(300, 2, generator=torch.Generator().manual_seed(0))
    found = cluster(points, 5, seed=0)
    means = torch.stack([points[found == each].mean(dim=0) for each in range(5)])
    assert torch.equal(torch.cdist(points, means).argmin(dim=1), found)


def test_fewer_points_than_clusters_leave_some_empty() -> None:
    found = cluster(torch.tensor([[1.0], [1.0], [5.0]]), 3, seed=0)
    assert found[0] == found[1] != found[2]


# --- moves ----------------------------------------------------------------------------------------


def gram_of(updates: list[list[float]]) -> np.ndarray:
    return np.asarray(np.array(updates) @ np.array(updates).T)


def test_the_most_opposed_pairs_swap_what_each_has_too_much_of() -> None:
    histograms = np.array([[40, 0, 10], [0, 40, 10], [20, 20, 10], [20, 20, 10]], float)
    gram = gram_of([[1, 0.1], [-1, 0], [0, 1], [-0.1, -1]])
    assert plan_moves(histograms, gram, 15) == (Move(0, 1, 0, 1, 15),), "2 and 3 are alike already"


def test_only_opposed_updates_lead_to_a_swap_and_a_peer_swaps_once() -> None:
    apart = np.array([[40, 0], [0, 40], [40, 0], [0, 40]], float)
    assert plan_moves(apart, np.ones((4, 4)), 5) == ()
    gram = gram_of([[1.0, 0.0], [-1.0, 0.0], [0.9, 0.3], [-0.9, 0.5]])
    moves = plan_moves(apart, gram, 5)
    assert [(move.first, move.second) for move in moves] == [(0, 1), (2, 3)]


def test_an_update_that_is_not_finite_pairs_with_nobody() -> None:
    apart = np.array([[40, 0], [0, 40], [40, 0]], float)
    gram = gram_of([[np.nan, 0.0], [-1.0, 0.0], [1.0, 0.1]])
    assert [(move.first, move.second) for move in plan_moves(apart, gram, 5)] == [(1, 2)]


def test_a_swap_that_would_overshoot_is_not_made() -> None:
    histograms = np.array([[21, 19], [19, 21]], float)
    assert plan_moves(histograms, gram_of([[1.0], [-1.0]]), 30) == ()
    assert plan_moves(histograms, gram_of([[1.0], [-1.0]]), 1) == (Move(0, 1, 0, 1, 1),)


def test_swaps_keep_all_samples_and_bring_histograms_together() -> None:
    labels = np.repeat(np.arange(4), 100)
    shares = [np.flatnonzero(labels == peer) for peer in range(4)]
    chance = np.random.default_rng(0)
    sizes = [len(share) for share in shares]

    def skew() -> float:
        counts = np.array([np.bincount(labels[share], minlength=4) for share in shares])
        return float(np.abs(counts / counts.sum(axis=1, keepdims=True) - 0.25).sum())

    skews = [skew()]
    for round_id in range(40):
        counts = np.array([np.bincount(labels[share], minlength=4) for share in shares], float)
        updates = chance.normal(size=(4, 3))  # so other pairs in each round
        moves = plan_moves(counts, updates @ updates.T, 10)
        shares = carry_out(moves, shares, labels, seed=1, round_id=round_id)
        skews.append(skew())
        assert sorted(np.concatenate(shares).tolist()) == list(range(400))
        assert [len(share) for share in shares] == sizes
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(skews))
    assert skews[0] == 6
    assert skews[-1] < 1


def test_the_samples_that_move_follow_from_the_seed() -> None:
    labels = np.repeat(np.arange(2), 50)
    shares = [np.arange(50), np.arange(50, 100)]
    moves = (Move(0, 1, 0, 1, 7),)
    one, again, other = (carry_out(moves, shares, labels, seed, 3) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one[0], other[0])
    assert (labels[one[0]] == 1).sum() == (labels[one[1]] == 0).sum() == 7
    assert np.array_equal(shares[0], np.arange(50)), "the old shares are as they were"


def test_the_bytes_of_swaps_are_counted_both_ways() -> None:
    assert count_bytes((Move(0, 1, 0, 1, 7), Move(2, 3, 0, 1, 1)), 100) == 1600
    assert [MovePolicy(4, 1).is_due(at) for at in range(9)] == [at in (3, 7) for at in range(9)]


# --- from a world ---------------------------------------------------------------------------------


def test_a_world_has_its_policy() -> None:
    plain = World(peers=4).build()
    assert (plain.moves, plain.task.order) == (None, None)
    moving = World(peers=4, split="dirichlet:1", assign="moves:10:5").build()
    assert (moving.moves, moving.task.order) == (MovePolicy(10, 5), None)
    clusters = World(peers=4, assign="stratified:clusters:3").build().task.order
    assert len(set(clusters.keys.tolist())) == 3


@pytest.mark.parametrize("local_steps", [1, 2])
def test_peers_read_the_samples_of_a_shared_order(local_steps: int) -> None:
    world = World(peers=4, batch=8, local_steps=local_steps, assign="similar:labels", seed=5)
    task = world.build().task
    shared = SharedOrder(task.data.labels.numpy(), "similar", 4, 8 * local_steps, seed=5)
    peers = np.array([3, 1])
    assert np.array_equal(task.draw_batches(peers, 7).numpy(), shared.draw_batches(peers, 7))


@pytest.mark.parametrize("topology", ["rolling", "ring"])
def test_both_engines_read_the_same_order(topology: str) -> None:
    world = SMALL.replace(topology=topology, assign="similar:labels")
    assert world.check(rounds=3).first_difference is None
    plain = world.replace(assign="").play(3).curve("loss")
    assert world.play(3).curve("loss") != plain


@pytest.mark.parametrize("topology", ["rolling", "ring"])
def test_swaps_bring_the_histograms_together_and_their_bytes_count(topology: str) -> None:
    world = SMALL.replace(topology=topology, split="sorted", assign="moves:2:5")
    played = [play(world), play(world), play(world.replace(assign=""))]
    (shares, nbytes), again, (unmoved, unmoved_bytes) = played
    assert nbytes == again[1]
    assert all(np.array_equal(a, b) for a, b in zip(shares, again[0], strict=True))
    samples = sum(len(np.setdiff1d(a, b)) for a, b in zip(shares, unmoved, strict=True))
    assert nbytes - unmoved_bytes == samples * 64 * 4 > 0, "64 pixels of 4 bytes"
    assert skew_of(shares) < skew_of(unmoved)


def play(world: World) -> tuple[Sequence[np.ndarray], int]:
    """Return the shares and the bytes after the first exchange of samples: two rounds."""
    parts = world.build()
    engine = RollingWorld(parts) if parts.topology.rolling else GossipWorld(parts)
    last = [engine.play_round() for _ in range(2)][-1]
    return engine._task.shares, last.bytes_sent


def skew_of(shares: Sequence[np.ndarray]) -> float:
    """Return the sum over peers of the L1 distance of their labels from those of all."""
    labels = SMALL.build().task.data.labels.numpy()
    counts = np.array([np.bincount(labels[share], minlength=10) for share in shares])
    common = counts.sum(axis=0) / counts.sum()
    return float(np.abs(counts / counts.sum(axis=1, keepdims=True) - common).sum())


def test_the_exact_engine_refuses_swaps_by_name() -> None:
    with pytest.raises(ConfigError, match="neither swaps of samples"):
        SMALL.replace(assign="moves:2:5", engine="exact").play(1)


@pytest.mark.parametrize(
    "text",
    ["stratified", "stratified:labels:3", "moves:0:1", "moves:5", "moves:a:b", "sorted:labels"],
)
def test_other_policies_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="there is no policy"):
        World(peers=4, assign=text).build()


def test_one_data_set_for_all_has_no_split() -> None:
    with pytest.raises(ConfigError, match="share one data set"):
        World(peers=4, split="sorted", assign="similar:labels").build()


def test_a_world_splits_by_clusters_of_its_features() -> None:
    shares = World(peers=4, split="sorted@clusters:4").build().task.shares
    data = World(peers=4).build().task.data
    spreads = [float(data.images[torch.from_numpy(share)].var(dim=0).sum()) for share in shares]
    assert max(spreads) < float(data.images.var(dim=0).sum())
