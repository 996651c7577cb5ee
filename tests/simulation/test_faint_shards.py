"""A shard with next to no gradient: there a batch decides the sign of an update, and honest results
oppose many. They are taken all the same, and who lies is found out by the other shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from effort import effort

from gossip.core import Effect, PeerId, Report
from gossip.faults import NodeAttack
from gossip_lab.simulation.campaign import play
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world import Observer
from gossip_lab.simulation.world.toy_payloads import noise_of
from gossip_lab.simulation.world.toy_trainer import ToyTrainer

LOUD = 8
"""Numbers of the first shard. The second one has a single number: nothing but a sign."""

SETTLED = 10
"""Rounds after which it is known how long results are."""

SCHEDULE = Schedule(
    3,
    peers=4,
    f=1,
    aggregator="mean",
    shards=(LOUD, 1),
    active_s=4.0,
    duration_s=4.0,
    compute_s=(0.02, 0.04),
)


@pytest.fixture(autouse=True)
def _faint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every update of the first shard points the same way. Its numbers are a hundred times as large
    as the noise, which is all that there is in the second."""

    def update(trainer: ToyTrainer, round_id: int, beside: Sequence[float] = ()) -> list[float]:
        noise = noise_of(f"{trainer.seed}/{trainer.peer}/{round_id}", LOUD + 1)
        return [1.0 + 0.01 * number for number in noise[:LOUD]] + [0.01 * noise[LOUD]]

    monkeypatch.setattr(ToyTrainer, "update", update)


class Refusals(Observer):
    """In which rounds somebody has refused a result of which shard, and who was locked up."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []
        self.locked: set[PeerId] = set()

    def on_effect(self, swarm: Any, peer: PeerId, effect: Effect) -> None:
        if not isinstance(effect, Report):
            return
        if effect.event == "refused_result":
            self.told.append((effect.fields["round"], effect.fields["shard"]))
        elif effect.event == "quarantined":
            self.locked.add(effect.fields["subject"])


@pytest.mark.parametrize("seed", effort([83], [83, 115, 131]))
def test_s10_and_before_it_is_known_how_long_results_are(seed: int) -> None:
    """As it was: in round 2 two of the four refused what the others had taken."""
    outcome = play.run(replace(SCHEDULE, seed=seed))
    assert outcome.violation is None, outcome.violation


@pytest.mark.parametrize("seed", [3, *effort([], [1, 2, 4])])
def test_honest_results_of_a_shard_without_a_gradient_are_taken(seed: int) -> None:
    refusals = Refusals()
    outcome = play.run(replace(SCHEDULE, seed=seed), [refusals])
    assert outcome.violation is None, outcome.violation
    assert outcome.rounds > 6 * SETTLED
    assert max(refusals.told, default=(0, 1))[0] < SETTLED
    assert all(shard == 1 for _, shard in refusals.told)


def test_a_server_that_lies_about_all_its_shards_is_found_out_by_the_others_alone() -> None:
    refusals = Refusals()
    lies = replace(SCHEDULE, seed=1, peers=5, aggregator="suspicion", active_s=3.0, duration_s=3.0)
    outcome = play.run(replace(lies, faults=(NodeAttack("wrong_results", (0,)),)), [refusals])
    assert outcome.violation is None, outcome.violation
    assert refusals.locked == {0}
