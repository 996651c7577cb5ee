"""Schedules that were planned for one process, on several peers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

from gossip.integrations.process_steps import ProcessSteps
from gossip.training.schedulers import SchedulerPace

PLANNED = 30


def line(optimizer: torch.optim.Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda at: max(0.0, 1 - at / PLANNED))


def cosine(optimizer: torch.optim.Optimizer) -> CosineAnnealingLR:
    return CosineAnnealingLR(optimizer, PLANNED)


def cycle(optimizer: torch.optim.Optimizer) -> OneCycleLR:
    return OneCycleLR(optimizer, max_lr=1.0, total_steps=PLANNED)


def made(kind: Any, processes: int) -> tuple[ProcessSteps, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    return ProcessSteps(kind(optimizer), lambda: processes), optimizer


@pytest.mark.parametrize("kind", [line, cosine, cycle])
@pytest.mark.parametrize("processes", [1, 3, 4])  # 4: the last step is of fewer
def test_a_schedule_of_one_process_ends_after_each_peers_steps(kind: Any, processes: int) -> None:
    schedule, optimizer = made(kind, processes)
    single, own = made(kind, 1)
    own.step()
    for step in range(-(-PLANNED // processes)):
        assert schedule.last_epoch == step
        optimizer.step()
        schedule.step()
        for _ in range(processes):
            single.step()
        assert schedule.get_last_lr() == single.get_last_lr()
        assert schedule.get_last_lr() == [optimizer.param_groups[0]["lr"]]
    assert schedule.get_last_lr()[0] < 0.02


def test_a_late_peer_catches_up_by_steps_of_the_run() -> None:
    late, optimizer = made(line, 3)
    pace = SchedulerPace()
    pace.follow({"schedule": late}, 0)
    optimizer.step()
    for step in range(1, 4):
        late.step()
        pace.stepped()
        pace.follow({"schedule": late}, step)
    late.step()
    pace.stepped()
    pace.follow({"schedule": late}, 7)  # three rounds were applied that its script did not see
    assert late.last_epoch == 7
    assert late.get_last_lr() == [pytest.approx(1 - 21 / PLANNED)]


def test_its_state_is_that_of_the_scheduler() -> None:
    one, optimizer = made(line, 3)
    other, _ = made(line, 3)
    optimizer.step()
    one.step()
    other.load_state_dict(one.state_dict())
    assert other.last_epoch == 1
    assert other.state_dict()["last_epoch"] == 3
