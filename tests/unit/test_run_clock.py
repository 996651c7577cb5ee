"""A loop that counts for itself is kept on the step of the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gossip.errors import ConfigError
from gossip.integrations.clock import RunClock, TrainLoader


class Run:
    """A session whose steps are as a test says."""

    step, finished, passed, planned_peers = 0, False, 0, 2

    def steps(self, total: int, **save: Any) -> Iterator[int]:
        while (step := self.step) < total and not self.finished:
            yield step
            if self.step == step and not self.finished:
                self.step, self.passed = step + 1, self.passed + 1


def clock_of(run: Run, total: int) -> RunClock:
    clock = RunClock(run)  # type: ignore[arg-type]
    clock.begin(total, None, None, 3)
    clock.follow()
    return clock


def one_cycle(total: int) -> torch.optim.lr_scheduler.OneCycleLR:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    optimizer.step()
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=total)


@pytest.mark.parametrize("moves", [[1] * 8, [1, 4, 1, 1, 1], [1, 0, 0, 1, 1, 3, 0, 2]])
def test_a_schedule_is_where_the_run_is_whatever_a_step_was_worth(moves: list[int]) -> None:
    """What came too late counts for nothing, and nothing is passed for it."""
    run, schedule, plain = Run(), one_cycle(8), one_cycle(8)
    clock = clock_of(run, 8)
    rates = [plain.get_last_lr()[0]]
    for _ in range(8):
        plain.step()
        rates.append(plain.get_last_lr()[0])
    for move in moves:
        run.step += move
        schedule.step()
        assert clock.follow([schedule]) == run.step
        assert clock.follow([schedule]) == run.step, "asked twice"
        assert schedule.last_epoch == run.step
        assert schedule.optimizer.param_groups[0]["lr"] == rates[run.step]
    assert clock.over
    assert run.passed == 0


def test_a_checkpoint_that_was_planned_for_more_peers_is_refused() -> None:
    run = Run()
    clock = RunClock(run)  # type: ignore[arg-type]
    clock.begin(8, None, None, 3)
    run.planned_peers = 3  # as the checkpoint says, which is loaded with the first step
    with pytest.raises(ConfigError, match="epochs for 3 peers"):
        clock.follow()


def test_a_chain_of_schedulers_is_where_the_run_is() -> None:
    run, optimizer = Run(), torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    chain = torch.optim.lr_scheduler.ChainedScheduler([decay], optimizer)
    clock = clock_of(run, 8)
    optimizer.step()
    for moves, rate in (1, 0.5), (3, 0.5**4), (0, 0.5**4):
        run.step += moves
        chain.step()
        clock.follow([chain])
        assert optimizer.param_groups[0]["lr"] == rate


def test_a_scheduler_that_goes_by_a_loss_is_left_to_the_loop() -> None:
    run, optimizer = Run(), torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    clock = clock_of(run, 8)
    run.step = 3
    assert clock.follow([plateau]) == 3
    assert plateau.last_epoch == 0


def test_a_loop_that_has_done_what_it_had_planned_passes_what_is_left() -> None:
    run, schedule = Run(), one_cycle(8)
    clock = clock_of(run, 8)
    run.step = 6
    clock.follow([schedule])
    clock.finish()
    assert (run.step, run.passed, clock.over) == (8, 2, True)
    assert clock.follow([schedule]) == schedule.last_epoch == 8


def test_no_batch_is_read_when_the_training_is_over() -> None:
    class Loader(list[int]):
        dataset = "data"

    run = Run()
    clock = clock_of(run, 3)

    def stepped() -> None:
        run.step += 1
        clock.follow()

    loader = TrainLoader(Loader([7, 8, 9, 10]), 2, clock, stepped)
    assert (len(loader), loader.steps, loader.dataset) == (4, 2, "data")
    assert list(loader) == [7, 8, 9]
    assert list(loader) == []
