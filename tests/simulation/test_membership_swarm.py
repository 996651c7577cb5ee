"""Whole swarms of memberships: crashes are found in time, and nobody dies who lives
(docs/design_notes.md N4, N5)."""

from __future__ import annotations

from statistics import median

import pytest
from member_swarm import MemberCore, all_fine, find_changes, member_swarm

from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.network import LinkModel, Network

# the kernel tells nothing: probes alone must find it
WITHOUT_HINTS = {"closing_s": (1e6, 1e6), "heartbeat_s": None}


def dead_everywhere(swarm: Swarm[MemberCore], peer: int) -> bool:
    return all(swarm.cores[other].membership.view.is_gone(peer) for other in swarm.up)


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_a_crash_is_skipped_within_milliseconds_and_known_by_all_within_the_bounds(n: int) -> None:
    skip_s, known_s = [], []
    for seed in range(5):
        swarm = member_swarm(n, seed)
        swarm.run_until(lambda swarm=swarm: all_fine(swarm), 2.0)
        swarm.run_for(0.5 + 0.037 * seed)
        crashed_at = swarm.now
        swarm.crash(n - 1)
        known_s.append(swarm.run_until(lambda swarm=swarm: dead_everywhere(swarm, n - 1), 3.0))
        skips = find_changes(swarm, "skip", since=crashed_at, about=n - 1)
        assert len({peer for _, peer, _ in skips}) == n - 1
        skip_s += [at - crashed_at for at, _, _ in skips]
        assert not find_changes(swarm, "dead", about=0)
    assert max(skip_s) <= 0.005  # the closing connections take up to 3 ms
    assert median(known_s) <= 1.3
    assert max(known_s) <= 2.2


@pytest.mark.parametrize("n", [4, 8, 16])
def test_without_any_hint_of_the_kernel_probes_alone_find_a_crash_within_the_bounds(n: int) -> None:
    suspect_s, known_s = [], []
    for seed in range(8):
        swarm = member_swarm(n, seed, Network(**WITHOUT_HINTS), encoded=False)
        swarm.run_for(2.0 + 0.037 * seed)
        crashed_at = swarm.now
        swarm.crash(0)
        known_s.append(swarm.run_until(lambda swarm=swarm: dead_everywhere(swarm, 0), 4.0))
        suspect_s.append(
            min(at for at, _, _ in find_changes(swarm, "suspect", since=crashed_at, about=0))
            - crashed_at
        )
    assert median(suspect_s) <= 0.5
    assert median(known_s) <= 1.9
    assert max(known_s) <= 2.5


@pytest.mark.parametrize("jitter", [0.0, 0.3])
@pytest.mark.parametrize("way_s", [0.01, 0.05, 0.1, 0.2])
def test_nobody_is_suspected_for_being_far_away(way_s: float, jitter: float) -> None:
    """Round trips of 20 to 400 ms, which is four times the probe timeout that is set."""
    delay_s = way_s * (1 - jitter), way_s * (1 + jitter)
    swarm = member_swarm(4, 3, Network(LinkModel(delay_s=delay_s)), encoded=False)
    swarm.run_for(60)
    assert not find_changes(swarm, "suspect", since=1.0), "once the first round trips are known"
    swarm.crash(0)
    crashed_at = swarm.now
    swarm.run_until(lambda: dead_everywhere(swarm, 0), 4.0)
    assert {change.peer for _, _, change in find_changes(swarm, "suspect", since=1.0)} == {0}
    assert swarm.now - crashed_at < 2.2 + 4 * way_s


@pytest.mark.parametrize("way_s", [0.0005, 0.05, 0.2])
def test_helpers_on_far_links_vouch_for_a_peer_that_one_other_cannot_reach(way_s: float) -> None:
    """Their answers take two round trips. Seen on real hosts: a peer whose key had not come yet
    refused a link at the start, and was suspected."""
    network = Network(LinkModel(delay_s=(way_s, way_s)))
    network.cut([(0, 2), (2, 0)])
    swarm = member_swarm(4, 3, network, encoded=False)
    swarm.run_for(60)
    assert not find_changes(swarm, "suspect"), find_changes(swarm, "suspect")[:3]


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_a_far_link_does_not_make_a_near_one_patient(seed: int) -> None:
    network = Network(**WITHOUT_HINTS)
    swarm = member_swarm(4, seed, network, encoded=False)
    network.shape([(3, peer) for peer in range(3)], delay_s=(0.2, 0.2))
    network.shape([(peer, 3) for peer in range(3)], delay_s=(0.2, 0.2))
    swarm.run_for(20)
    assert not find_changes(swarm, "suspect", since=1.0)
    crashed_at = swarm.now
    swarm.crash(0)
    swarm.run_until(lambda: dead_everywhere(swarm, 0), 6.0)
    found = [
        at for at, by, _ in find_changes(swarm, "suspect", since=crashed_at, about=0) if by != 3
    ]
    assert min(found) - crashed_at < 0.6, "0.75 to 0.94 with the patience of the far link"


@pytest.mark.parametrize("heartbeats", [True, False])
def test_the_halves_of_a_partition_find_each_other_again(heartbeats: bool) -> None:
    network = Network() if heartbeats else Network(heartbeat_s=None)
    swarm = member_swarm(6, 7, network)
    swarm.run_until(lambda: all_fine(swarm), 2.0)
    network.partition((0, 1), (2, 3, 4, 5))
    swarm.run_for(10.0)
    assert swarm.cores[0].membership.view.alive() == (0, 1)
    assert swarm.cores[5].membership.view.alive() == (2, 3, 4, 5)
    network.heal()
    swarm.run_until(lambda: all_fine(swarm), 2.0 if heartbeats else 8.0)
    assert {(peer, change.peer) for _, peer, change in find_changes(swarm, "alive_again")} == {
        pair for a in (0, 1) for b in (2, 3, 4, 5) for pair in ((a, b), (b, a))
    }


def test_a_link_that_carries_one_way_only_kills_nobody_who_has_friends() -> None:
    network = Network(heartbeat_s=None)
    swarm = member_swarm(5, 3, network)
    swarm.run_until(lambda: all_fine(swarm), 2.0)
    network.cut([(0, 1)])
    swarm.run_for(20.0)
    assert not find_changes(swarm, "dead")


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("hints", [True, False])
def test_a_restart_faster_than_detection_is_noticed_and_the_former_life_is_not_mourned(
    after_s: float, hints: bool
) -> None:
    swarm = member_swarm(5, 9, Network() if hints else Network(**WITHOUT_HINTS))
    swarm.run_until(lambda: all_fine(swarm), 2.0)
    swarm.restart(2, after_s)
    swarm.run_for(after_s + 0.001)
    swarm.run_until(lambda: all_fine(swarm), 3.0)
    swarm.run_for(3.0)
    assert all_fine(swarm)
    assert not find_changes(swarm, "dead")
    assert {peer for _, peer, _ in find_changes(swarm, "alive_again", about=2)} == {0, 1, 3, 4}
    assert {core.membership.members[2].incarnation for core in swarm.cores.values()} == {1}


def test_a_peer_that_dies_and_returns_later_lives_again_even_if_it_refuted_much_before() -> None:
    network = Network(LinkModel(loss=0.3))
    swarm = member_swarm(5, 1, network, encoded=False)
    swarm.run_for(30.0)
    # higher than the incarnation with which it will return
    assert swarm.cores[2].membership.standing > 1
    network.default = LinkModel()
    swarm.run_until(lambda: all_fine(swarm), 5.0)
    swarm.restart(2, 3.0)
    swarm.run_for(2.5)
    assert dead_everywhere(swarm, 2)
    swarm.run_for(0.6)
    swarm.run_until(lambda: all_fine(swarm), 3.0)
