"""Memory that peers of a host lend each other: it cannot be read, or is written over once it has
been looked at. That harms nobody but its owner (S11, L11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from effort import effort

from gossip.core import Aggregate, Aggregated
from gossip.core.rounds.server import Server
from gossip.faults import Fault, Rewritten, Unreadable
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.schedules import generate
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.toy_trainer import ToyTrainer

SMALL = Schedule(
    3,
    peers=4,
    shards=(8, 8),
    compute_s=(0.1, 0.2),
    round_timeout_s=3.0,
    active_s=18.0,
    duration_s=30.0,
)


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        (Unreadable((1,), 5.0, 10.0), "L11"),
        (Rewritten((1,), 5.0, 10.0), "S11"),
        *effort([], [(Rewritten((1, 2), 5.0, 10.0), "S11")]),
    ],
)
def test_rounds_go_on_beside_memory_that_changes_or_cannot_be_read(
    fault: Fault, promise: str
) -> None:
    outcome = run(replace(SMALL, faults=(fault,)))
    assert outcome.violation is None, outcome.violation
    assert outcome.struck[fault.kind] == 1
    assert outcome.judged[promise] > 0


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


def whole_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum has what is not finite, and so there is none."""

    def aggregate(self: ToyTrainer, ask: Aggregate, now: float) -> Aggregated:
        assert self.second_reading is not None
        read = [self.second_reading(row, ask.round_id, now) for row in ask.rows]
        if any(vector[0] != vector[0] for vector in read):
            return Aggregated(ask.ticket, None, reason="the aggregate is not finite")
        return self._aggregate(ask)

    monkeypatch.setattr(ToyTrainer, "_aggregate_in_place", aggregate)


def others_have_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server loses which rows were left out."""
    made = Server._commit_of

    def commit_of(self: Server, shard: Any, result: Aggregated, roster: Any) -> Any:
        weights = tuple(reversed(result.weights))
        return made(self, shard, replace(result, weights=weights), roster)

    monkeypatch.setattr(Server, "_commit_of", commit_of)


@pytest.mark.parametrize("defect", [whole_is_lost, others_have_no_weight])
def test_s11_what_is_rewritten_and_harms_others_is_caught(
    defect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    violation = run(replace(SMALL, faults=(Rewritten((1,), 5.0, 10.0),))).violation
    assert violation is not None
    assert violation.invariant == "S11"
