"""Larger swarms and worse weather than usual; ``benchmarks/membership_scale.py`` goes on to 1,000 peers and a million seconds."""

from __future__ import annotations

from collections import Counter

from gossip.core.members import LARGE, Change
from gossip.core.messages import PeerId
from gossip.sim.membership_only import all_fine, member_swarm, told
from gossip.sim.network import LinkModel, Network


def test_a_large_swarm_agrees_after_a_tenth_of_it_crashed_at_once() -> None:
    n = LARGE + 6  # so many that helpers and audiences are drawn, not chosen among all
    swarm = member_swarm(n, 3, Network(closing_s=(1e6, 1e6), heartbeat_s=None), encoded=False)
    swarm.run_for(2.0)
    assert all_fine(swarm)
    crashed_at = swarm.now
    victims = range(0, n, 10)
    for victim in victims:
        swarm.crash(victim)
    swarm.run_for(4.0)
    assert {change.peer for _, _, change in told(swarm, "dead")} == set(victims)
    for peer in swarm.up:
        assert set(swarm.cores[peer].membership.alive()) == set(swarm.up)
    assert max(at for at, _, _ in told(swarm, "dead")) < crashed_at + 3.5


def test_nobody_dies_of_loss_duplication_and_jitter_together() -> None:
    seen: Counter[str] = Counter()

    def listen(now: float, by: PeerId, change: Change) -> None:
        seen[change.what] += 1

    network = Network(LinkModel(delay_s=(0.0, 0.1), loss=0.2, duplicate=0.2))
    swarm = member_swarm(8, 21, network, encoded=False, listen=listen)
    swarm.run_for(60.0)
    assert 0.18 < swarm.counts["lost"] / swarm.counts["sent"] < 0.22
    assert swarm.counts["duplicated"] > 1000
    assert seen["suspect"] > 100
    assert not seen["dead"]
