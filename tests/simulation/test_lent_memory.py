"""Memory that peers of a host lend each other: it cannot be read, or is written over once it has
been looked at. That harms nobody but its owner (S11, L11)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checked_swarm import assert_sound
from effort import effort, in_turn

from gossip.faults import Fault, Rewritten, Unreadable
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.schedules import generate
from gossip_lab.simulation.schedules.schedule import Schedule

SMALL = Schedule(3, peers=4, shards=(8, 8), compute_s=(0.1, 0.2), active_s=9.0, duration_s=15.0)


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        (Unreadable((1,), 2.0, 5.0), "L11"),
        (Rewritten((1,), 2.0, 5.0), "S11"),
        *effort([], [(Rewritten((1, 2), 2.0, 5.0), "S11")]),
    ],
)
def test_rounds_go_on_beside_memory_that_changes_or_is_closed(fault: Fault, promise: str) -> None:
    outcome = assert_sound(replace(SMALL, faults=(fault,)))
    assert outcome.struck[fault.kind] == 1
    assert outcome.judged[promise] > 0


@in_turn(0, 2)
def test_schedules_of_memory_that_is_lent_are_drawn_and_borne() -> None:
    drawn = [
        schedule
        for schedule in map(generate, range(effort(150, 2000)))
        if any(isinstance(fault, Rewritten | Unreadable) for fault in schedule.faults)
    ]
    assert len(drawn) >= effort(3, 30)
    struck: set[str] = set()
    for schedule in drawn[: effort(2, 60)]:
        outcome = run(schedule)
        assert outcome.violation is None, f"seed {schedule.seed}: {outcome.violation}"
        struck |= outcome.struck.keys()
    assert struck & {"rewritten", "unreadable"}
