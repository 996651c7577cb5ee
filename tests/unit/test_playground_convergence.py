"""The suite of convergence: its graphs, and its verdicts on made-up runs."""

from __future__ import annotations

import pytest

from gossip.topologies import Roster, Topology
from gossip_lab import estimates
from gossip_lab.playground.convergence import SCENARIOS, Behind, Verdict, by_turns, parted
from gossip_lab.playground.world import World

PEERS = tuple(range(12))


def reached(topology: Topology, rounds: range, **options: object) -> set[int]:
    """Return the peers that are connected to peer 0 by the union of the graphs of some rounds."""
    edges: set[tuple[int, int]] = set()
    for round_id in rounds:
        pushes = topology(Roster(PEERS), round_id, 0, **options).pushes or {}
        edges |= {(peer, other) for peer, to in pushes.items() for other in to}
    found = {0}
    while more := {b for a, b in edges if a in found} - found:
        found |= more
    return found


def test_a_partition_ends_in_its_round_or_never() -> None:
    halves = set(PEERS[::2])
    assert reached(parted, range(20), until=20) == halves
    assert reached(parted, range(21), until=20) == set(PEERS)
    assert reached(parted, range(200)) == halves


def test_graphs_by_turns_are_connected_in_two_rounds_and_with_a_gap_in_none() -> None:
    assert reached(by_turns, range(8, 9)) != set(PEERS)
    assert reached(by_turns, range(8, 12)) == set(PEERS)
    assert reached(by_turns, range(200), gap=True) != set(PEERS)


def behind(distance: float, *excess: float) -> Behind:
    return Behind(estimates.Estimate((distance,) * len(excess)), estimates.Estimate(excess))


@pytest.mark.parametrize(
    ("world", "converges"),
    [
        (behind(0.05, 0.01, -0.01, 0.02), True),
        (behind(0.11, 0.01, -0.01, 0.02), False),  # too far apart
        (behind(0.05, 0.10, 0.11, 0.12), False),  # the loss is above that of the calm world
        (behind(0.05, 0.10, float("inf"), 0.12), False),
    ],
)
def test_a_world_converges_if_its_peers_agree_and_its_loss_is_that_of_the_calm_one(
    world: Behind, converges: bool
) -> None:
    assert Verdict(world, world).converges is converges


def test_a_twin_misses_by_its_distance_or_by_five_standard_errors() -> None:
    good = behind(0.05, 0.0, 0.1, -0.1)
    assert not Verdict(good, good).twin_misses
    assert Verdict(good, behind(0.2, 0.0, 0.1, -0.1)).twin_misses
    assert Verdict(good, behind(0.05, 1.0, 1.1, 0.9)).twin_misses
    assert not Verdict(good, behind(0.05, 1.0, 0.1, 0.1)).twin_misses  # within chance


def test_each_twin_differs_from_its_world_and_all_can_be_played() -> None:
    for scenario in SCENARIOS.values():
        worlds: tuple[World, ...] = (scenario.calm, scenario.world, scenario.twin)
        assert len(set(worlds)) == 3
        for world in worlds:
            (first, *_) = world.replace(model="linear").evaluations(1, 1)
            assert {row.round for row in first} == {1}
