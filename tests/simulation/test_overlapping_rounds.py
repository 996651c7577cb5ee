"""Simulated trainers that compute the next update beside the round of the last one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checked_swarm import assert_sound

from gossip import topologies
from gossip.faults import Restart
from gossip_lab.simulation import Schedule, generate, run
from gossip_lab.simulation.world import ToyTrainer

SCHEDULE = Schedule(
    4, peers=4, overlap=1, faults=(Restart(2, 6, 1.0),), active_s=8.0, duration_s=12.0
)


@pytest.mark.parametrize(("local_steps", "fragments"), [(1, 1), (5, 1), (4, 2)])
def test_all_end_alike_and_no_sample_is_used_twice(
    local_steps: int, fragments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[bool] = []
    judge = ToyTrainer._is_of_use

    def counted(self: ToyTrainer, draft, go):  # type: ignore[no-untyped-def]
        used.append(judge(self, draft, go))
        return used[-1]

    monkeypatch.setattr(ToyTrainer, "_is_of_use", counted)
    outcome = assert_sound(replace(SCHEDULE, local_steps=local_steps, fragments=fragments))
    assert outcome.judged["S24"] > 50
    assert used.count(True) > 2 * used.count(False) > 0


def test_without_a_fault_every_guess_is_right() -> None:
    assert run(replace(SCHEDULE, faults=())).violation is None


def test_some_schedules_with_rolling_rounds_have_overlap() -> None:
    drawn = [generate(seed) for seed in range(60)]
    beside = [schedule for schedule in drawn if schedule.overlap]
    assert 5 < len(beside) < 40
    assert all(topologies.load(schedule.topology).rolling for schedule in beside)
    assert any(schedule.fragments > 1 for schedule in map(generate, range(300)) if schedule.overlap)
