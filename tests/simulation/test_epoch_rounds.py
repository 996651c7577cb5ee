"""Crashes, restarts and pauses over several epochs: each has its planned rounds on every peer, and
each sample is used once."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from checked_swarm import record_commits
from effort import effort
from test_peer_rolling import assert_one_history, rolling_swarm, settle, shake

from gossip.core.events import Committed
from gossip.core.messages import PeerId
from gossip.core.peer import Peer
from gossip_lab.simulation.world.driver import Swarm

PEERS, BATCH, SAMPLES = 5, 8, 997
STEPS = -(-SAMPLES // (PEERS * BATCH))


def used(commits: Mapping[int, Committed]) -> tuple[list[int], int]:
    """Positions of all samples that commits have used, and how many rounds these are."""
    rounds: dict[int, list[int]] = {}
    for round_id, done in commits.items():
        named = [c.peer for c in done.commit.contributors]
        assert done.slices is not None
        rounds[round_id] = [
            at for peer in named for pair in done.slices[peer] for at in range(*pair)
        ]
    assert sorted(rounds) == list(range(len(rounds)))
    return [at for positions in rounds.values() for at in positions], len(rounds)


def epochs_of(swarm: Swarm[Peer], peer: PeerId) -> list[tuple[int, int]]:
    return [
        (report.fields["epoch"], report.fields["rounds"]) for report in swarm.reports(peer, "epoch")
    ]


@pytest.mark.parametrize("seed", range(effort(1, 20)))
def test_every_epoch_has_its_rounds_and_every_sample_is_used_once(seed: int) -> None:
    swarm = rolling_swarm(PEERS, seed, batch=BATCH, slices="equal")
    commits = record_commits(swarm)
    swarm.run_for(1.0)
    shake(swarm, random.Random(seed), ["crash", "pause"], bouts=effort(2, 6))
    settle(swarm)
    assert_one_history(swarm)
    positions, rounds = used(commits)
    epochs = rounds // STEPS
    assert epochs > 3
    assert len(positions) == len(set(positions))
    for peer in swarm.up:
        told = epochs_of(swarm, peer)
        assert all(length == STEPS for _, length in told)
        numbers = [epoch for epoch, _ in told]
        assert numbers == sorted(set(numbers))
        cursor = swarm.hosts[peer].core.rounds.replicated.cursor
        assert cursor.epoch == swarm.hosts[peer].core.rounds.round_id // STEPS
    # what is left is a remainder: all before it was used, but for what has come back last
    cores = [swarm.hosts[peer].core for peer in swarm.up]
    cursor = max(cores, key=lambda core: core.rounds.round_id).rounds.replicated.cursor
    assert len(positions) + cursor.remaining == SAMPLES * (cursor.epoch + 1)
    assert max(positions) < SAMPLES * (epochs + 1)
    assert len(positions) > max(positions) - PEERS * BATCH
