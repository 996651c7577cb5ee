"""Local steps in the simulated swarm: the memory of the outer step is part of what all share."""

from __future__ import annotations

import pytest

from gossip.core.rounds.gossip import GossipRounds
from gossip.faults import Restart
from gossip_lab.simulation import Schedule, generate, run
from gossip_lab.simulation.checkers.safety.results import AppliesWhatTheRuleSaid
from gossip_lab.simulation.world import ToyTrainer

SCHEDULE = Schedule(
    3, local_steps=5, faults=(Restart(2, 6, 1.0),), active_s=8.0, duration_s=12.0, rounds_min=10
)


def test_who_comes_back_takes_the_memory_of_the_outer_step_over() -> None:
    outcome = run(SCHEDULE)
    assert outcome.violation is None, outcome.violation
    assert outcome.reports["restored"] == 1


def test_replicas_part_where_it_is_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ToyTrainer._restore

    def without_memory(self: ToyTrainer, restore, now):  # type: ignore[no-untyped-def]
        told = whole(self, restore, now)
        self._momentum = type(self._momentum)("f", bytes(4 * len(self._momentum)))
        return told

    monkeypatch.setattr(ToyTrainer, "_restore", without_memory)
    outcome = run(SCHEDULE)
    assert outcome.violation is not None


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_momentum_does_not_drive_peers_of_a_ring_apart(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Schedule(
        1,
        peers=4,
        topology="ring",
        aggregator=rule,
        local_steps=20,
        compute_s=(0.35, 0.36),
        active_s=6.0,
        duration_s=10.0,
        rounds_min=10,
    )
    outcome = run(ring)
    assert outcome.violation is None, outcome.violation
    monkeypatch.setattr(GossipRounds, "_own_share", lambda *_: 0.0)
    monkeypatch.setattr(AppliesWhatTheRuleSaid, "_judge_own_share", lambda *_: None)
    outcome = run(ring)
    assert outcome.violation is not None
    assert outcome.violation.invariant == "L5"


def test_some_schedules_have_local_steps() -> None:
    drawn = [generate(seed) for seed in range(100)]
    assert {schedule.local_steps for schedule in drawn} == {1, 2, 5, 20}
