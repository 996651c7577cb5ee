"""S19 under ``--quorum available``: two or three peers, of which those with a state are killed
while one that comes back has none yet. Fresh weights never become the swarm's model."""

from __future__ import annotations

from random import Random

import pytest
from checked_swarm import assert_sound
from effort import effort

from gossip.faults.kinds import Restart
from gossip_lab.simulation.schedules.schedule import Schedule

SEEDS = effort(4, 200)
WAVES_S = (4.0, 10.0)


def killed_around_a_joiner(seed: int) -> Schedule:
    """One is killed and comes back. Until its trainer has a model, each of the others is killed or
    not, and comes back in its turn."""
    lot = Random(f"fresh weights/{seed}")
    peers, prepare_s = lot.choice([2, 3]), lot.uniform(0.5, 2.0)
    faults = []
    for wave_s in WAVES_S[: lot.choice([1, 2])]:
        joiner, back_s = lot.randrange(peers), lot.uniform(0.1, 1.0)
        faults.append(Restart(joiner, None, back_s, wave_s))
        spared = lot.random() < 0.5
        for peer in range(peers):
            if peer != joiner and not (spared and lot.random() < 0.7):
                at_s = wave_s + back_s + lot.uniform(0.0, prepare_s)
                faults.append(Restart(peer, None, lot.uniform(0.1, 3.0), at_s))
    return Schedule(
        seed,
        peers=peers,
        faults=tuple(faults),
        quorum="available",
        apart=True,
        prepare_s=prepare_s,
        start_timeout_s=5.0,
        local_steps=lot.choice([1, 5]),
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_fresh_weights_never_become_the_model_of_the_swarm(seed: int) -> None:
    outcome = assert_sound(killed_around_a_joiner(seed))
    assert outcome.judged["S19"]
