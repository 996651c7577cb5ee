"""Simulated trainers that compute the next update beside the round of the last one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gossip import topologies
from gossip.core.ledger.prefetch import CursorLookahead
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
    outcome = run(replace(SCHEDULE, local_steps=local_steps, fragments=fragments))
    assert outcome.violation is None, outcome.violation
    assert outcome.judged["S24"] > 50
    assert used.count(True) > 2 * used.count(False) > 0


def test_an_update_of_other_samples_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyTrainer, "_is_of_use", lambda self, draft, go: True)
    outcome = run(SCHEDULE)
    assert outcome.violation is not None
    assert outcome.violation.invariant == "S24"


def test_an_update_of_older_parameters_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    drafted = ToyTrainer._drafted

    def of_the_round_before(self: ToyTrainer, go, beside=()):  # type: ignore[no-untyped-def]
        draft = drafted(self, go, beside)
        return replace(draft, applied=draft.applied - 1) if go.round_id > 3 else draft

    monkeypatch.setattr(ToyTrainer, "_drafted", of_the_round_before)
    outcome = run(SCHEDULE)
    assert outcome.violation is not None
    assert "of parameters that lack 2 rounds" in str(outcome.violation)


def test_without_a_fault_every_guess_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = replace(SCHEDULE, faults=())
    assert run(calm).violation is None
    look = CursorLookahead.predict_rounds

    def present(self: CursorLookahead, *asked: Any) -> Any:
        return tuple([(epoch, ((0, 1),)) for epoch, _ in look(self, *asked)])

    monkeypatch.setattr(CursorLookahead, "predict_rounds", present)
    outcome = run(calm)
    assert outcome.violation is not None
    assert outcome.violation.invariant == "S24"


def test_some_schedules_with_rolling_rounds_have_overlap() -> None:
    drawn = [generate(seed) for seed in range(60)]
    beside = [schedule for schedule in drawn if schedule.overlap]
    assert 5 < len(beside) < 40
    assert all(topologies.load(schedule.topology).rolling for schedule in beside)
    assert any(schedule.fragments > 1 for schedule in map(generate, range(300)) if schedule.overlap)
