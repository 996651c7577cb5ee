"""Scripts with two optimizers: each steps in a round of its own, and who is elsewhere in its loop
comes together with the others again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checked_swarm import assert_sound
from effort import effort, rotated

from gossip.core import Committed, Effect, PeerId, is_further
from gossip.faults import Hang, Restart
from gossip_lab.simulation import Schedule, generate
from gossip_lab.simulation.world import AnySwarm, Observer

PEERS = 4


class CommitRecords(Observer):
    """The kind and the contributors of each commit, in order."""

    def __init__(self) -> None:
        self.made: list[tuple[int, tuple[PeerId, ...]]] = []

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Committed) and effect.made:
            named = tuple([each.peer for each in effect.commit.contributors])
            self.made.append((effect.commit.kind, named))


def schedule(seed: int, further_every: int) -> Schedule:
    faults = (Hang(1, 4, 2.2), Restart(2, 8, 1.0))
    return Schedule(
        seed,
        PEERS,
        f=1,
        aggregator="trimmed_mean",
        faults=faults,
        further_every=further_every,
        active_s=10.0,
        duration_s=20.0,
        rounds_min=20,
    )


@pytest.mark.parametrize("further_every", [1, 3])
@pytest.mark.parametrize("seed", range(effort(1, 20)))
def test_who_has_missed_rounds_is_in_those_of_both_again(seed: int, further_every: int) -> None:
    records = CommitRecords()
    assert_sound(schedule(seed, further_every), [records])
    last = records.made[-2 * (further_every + 1) - 4 : -4]  # then peers begin to leave
    assert {named for _, named in last} == {tuple(range(PEERS))}
    assert sum(is_further(kind) for kind, _ in last) == 2


@pytest.mark.parametrize("seed", rotated([201, *range(effort(3, 60))]))
def test_drawn_faults_are_borne(seed: int) -> None:
    """201: those of two kinds were each too few for the rule, and lost all their rounds."""
    drawn = generate(seed, topology="rolling", aggregator="mean" if seed != 201 else None)
    drawn = replace(drawn, overlap=0, local_steps=1, fragments=1, stages=())
    assert_sound(replace(drawn, further_every=(1, 3)[seed % 2] if seed != 201 else 1))


def test_some_schedules_have_two_optimizers() -> None:
    assert {generate(seed).further_every for seed in range(80)} == {0, 1, 3, 5}


def test_a_round_whose_shards_are_of_two_kinds_uses_no_samples() -> None:
    """One peer of nine lives on, with the result of one shard, and makes the other with the new
    lives of the rest, whose scripts are elsewhere."""
    assert_sound(generate(26376))
