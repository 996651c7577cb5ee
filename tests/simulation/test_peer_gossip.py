"""Whole peers on a virtual clock, gossip rounds: membership, rounds and recovery together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checked_swarm import core_settings, peer_swarm, toy_trainers

from gossip.core.peer import Peer
from gossip.core.settings import RoundSettings
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.toy_trainer import ToyTrainer


def gossip_swarm(n: int, seed: int, topology: str = "random_k", **trainer: Any) -> Swarm[Peer]:
    rounds = RoundSettings(round_timeout_s=2.0)
    settings = core_settings(n, seed, rounds=rounds)
    return peer_swarm(settings, toy_trainers(seed, **trainer), topology)


def replicas(swarm: Swarm[Peer]) -> list[ToyTrainer]:
    found = [swarm.trainer(peer) for peer in swarm.up]
    return [trainer for trainer in found if isinstance(trainer, ToyTrainer)]


def apart(swarm: Swarm[Peer]) -> float:
    """Consensus distance."""
    x = np.stack([trainer.parameters for trainer in replicas(swarm)])
    return float(np.sqrt(((x - x.mean(axis=0)) ** 2).sum(axis=1).mean()))


def run_to(swarm: Swarm[Peer], round_id: int) -> None:
    there = [host for host in swarm.hosts.values() if host.state != "crashed"]
    swarm.run_until(
        lambda: all(host.core.rounds.round_id >= round_id for host in there), limit_s=60
    )


@pytest.mark.parametrize("topology", ["random_k", "ring", "full"])
def test_a_swarm_gathers_and_trains(topology: str) -> None:
    swarm = gossip_swarm(6, 1, topology)
    run_to(swarm, 100)
    assert max(trainer.distance for trainer in replicas(swarm)) < 0.1
    assert apart(swarm) < 0.1


def test_peers_that_are_stopped_leave_without_waiting_for_long() -> None:
    swarm = gossip_swarm(6, 4)
    run_to(swarm, 30)
    for peer in swarm.up:
        swarm.stop(peer, "finished")
    swarm.run_for(6.0)
    assert [host.halt.exit_code for host in swarm.hosts.values() if host.halt is not None] == [
        0
    ] * 6
