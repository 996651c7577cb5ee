"""Fragments in the simulated swarm: which one a round is on follows from the history of all."""

from __future__ import annotations

import pytest

from gossip.core.ledger.replicated_state import ReplicatedState
from gossip.faults import Restart
from gossip_lab.simulation import Schedule, generate, run

SCHEDULE = Schedule(
    3,
    local_steps=4,
    fragments=2,
    faults=(Restart(2, 6, 1.0),),
    active_s=8.0,
    duration_s=12.0,
    rounds_min=10,
)


def test_who_comes_back_exchanges_the_fragments_that_the_others_do() -> None:
    outcome = run(SCHEDULE)
    assert outcome.violation is None, outcome.violation
    assert outcome.reports["restored"] == 1


def test_who_forgets_how_many_rounds_were_no_steps_exchanges_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = ReplicatedState.adopt

    def forgetful(self: ReplicatedState, *state):  # type: ignore[no-untyped-def]
        whole(self, *state)
        self.collectives = 0

    monkeypatch.setattr(ReplicatedState, "adopt", forgetful)
    assert run(SCHEDULE).violation is not None


def test_some_schedules_have_fragments() -> None:
    drawn = [generate(seed) for seed in range(200)]
    assert {schedule.fragments for schedule in drawn} == {1, 2, 5}
