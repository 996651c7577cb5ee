"""A scheduler is where the run is, also when several rounds came within one step of a script."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    SequentialLR,
)

from gossip.training.schedulers import SchedulerPace


def descent():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


def made():
    optimizer = descent()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0 / (1 + epoch))
    optimizer.step()  # or torch warns that a scheduler was stepped before it
    return scheduler


def played(steps, at=lambda step: True, start=0, waits=(), loaded=None):
    """A scheduler whose script sees these numbers of the next step, and steps it where ``at``. In
    front of those in ``waits`` the rounds pass while it waits, otherwise within its own step."""
    pace, scheduler = SchedulerPace(), made()
    kept = {"scheduler": scheduler}
    scheduler.last_epoch = start
    if loaded is not None:
        pace.loaded(kept, loaded)
    pace.follow(kept, steps[0])
    for begun, step in pairwise(steps):
        if step not in waits:
            pace.stepped()
            if at(begun):
                scheduler.step()
        pace.follow(kept, step)
        pace.follow(kept, step)  # a loop looks before and behind a step
    pace.follow(kept, steps[-1], over=True)
    return scheduler


@pytest.mark.parametrize("waits", [(), (7,), (7, 8)])
@pytest.mark.parametrize("steps", [[0, 1, 2, 3, 7, 8, 9], [0, 1, 2, 7, 20], [4, 5, 6, 7, 8]])
def test_it_is_stepped_for_every_step_of_the_run(steps, waits):
    scheduler = played(steps, start=steps[0], waits=waits)
    assert scheduler.last_epoch == steps[-1]
    assert scheduler.get_last_lr() == [1.0 / (1 + steps[-1])]


def test_a_step_of_the_script_for_a_round_that_has_passed_counts_once():
    """It came back, and the round of the batch that it has in hand passed meanwhile."""
    pace, scheduler = SchedulerPace(), made()
    kept = {"scheduler": scheduler}
    scheduler.last_epoch = 6
    pace.loaded(kept, 6)
    pace.follow(kept, 7)
    for step in (7, 8, 9):
        pace.stepped()
        scheduler.step()
        pace.follow(kept, step)
        assert scheduler.last_epoch == step


def test_one_that_began_later_than_the_run_stays_as_far_behind():
    assert played([10, 11, 12, 15]).last_epoch == 5


@pytest.mark.parametrize("steps", [[4, 5, 6], [6, 7, 8], [5, 9]])
def test_one_that_came_with_a_state_is_stepped_for_what_has_followed(steps):
    """Rounds pass between the state and the first look."""
    assert played(steps, start=4, loaded=4).last_epoch == steps[-1]
    assert played(steps, start=2, loaded=4).last_epoch == 2 + len(steps) - 1  # once an epoch?


@pytest.mark.parametrize("steps", [list(range(31)), [*range(8), 12, 13, *range(14, 31)]])
def test_one_that_is_stepped_once_an_epoch_is_left_alone(steps):
    assert played(steps, at=lambda step: step % 10 == 9).last_epoch == 3 - (9 not in steps)


@pytest.mark.parametrize("seen", [[0, 1, 2, 3], [0, 1, 2, 5], [0, 1, 2, 3, 9, 20], [2, 3, 4, 6]])
def test_one_that_is_stepped_once_an_epoch_is_stepped_for_those_that_were_not_seen(seen):
    pace, scheduler = SchedulerPace(), made()
    kept, step = {"scheduler": scheduler}, 10 * seen[0]
    for epoch in seen:
        pace.begin_epoch(kept, epoch)
        assert scheduler.last_epoch == epoch - seen[0]
        for step in range(10 * epoch, 10 * epoch + 10):
            pace.stepped()
            pace.follow(kept, step)
        scheduler.step()
    assert scheduler.get_last_lr() == [1.0 / (2 + seen[-1] - seen[0])]


@pytest.mark.parametrize(
    "times", [[0, 0, 0], [2, 2, 2], [0, 0, 1], [0, 1, 0, 1], [1, 0, 1], [1]], ids=str
)
def test_one_that_is_not_stepped_once_in_each_epoch_is_left_alone(times):
    """It may go by what the script finds, or by every second epoch."""
    pace, scheduler = SchedulerPace(), made()
    for epoch, often in enumerate(times):
        pace.begin_epoch({"scheduler": scheduler}, epoch)
        for _ in range(often):
            scheduler.step()
    pace.begin_epoch({"scheduler": scheduler}, len(times) + 7)
    assert scheduler.last_epoch == sum(times)


def test_one_of_a_state_that_was_taken_over_is_where_that_state_is():
    pace, scheduler = SchedulerPace(), made()
    kept = {"scheduler": scheduler}
    pace.begin_epoch(kept, 0)
    scheduler.last_epoch = 1
    pace.loaded(kept, 40)
    pace.begin_epoch(kept, 4)
    assert scheduler.last_epoch == 1


def test_one_that_is_not_stepped_is_left_alone_and_so_is_a_plateau():
    assert played([0, 1, 4, 5], at=lambda step: False).last_epoch == 0
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    pace = SchedulerPace()
    pace.follow({"plateau": plateau, "other": object()}, 0)
    plateau.step(1.0)
    pace.follow({"plateau": plateau}, 3)
    assert plateau.last_epoch == 1


# Steps of the run between which the script makes one of its own each; some pass while it stands.
LATE = [0, 1, 2, 3, 6, 7, 12, 13]
ENDING = {
    "warm-up": lambda optimizer: LinearLR(optimizer, 0.1, total_iters=5),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, 5),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 1.0, total_steps=5),
}


def followed(optimizer, kept, step_it, steps=LATE):
    pace = SchedulerPace()
    pace.follow(kept, steps[0])
    for step in steps[1:]:
        optimizer.step()
        pace.stepped()
        step_it()
        pace.follow(kept, step)
    pace.follow(kept, steps[-1], over=True)


@pytest.mark.parametrize("kind", ENDING)
def test_one_that_the_script_leaves_at_its_end_is_not_stepped_beyond(kind):
    """Of the steps 3 to 6 the script would have stepped it in two."""
    optimizer = descent()
    scheduler = ENDING[kind](optimizer)
    followed(
        optimizer,
        {"scheduler": scheduler},
        lambda: scheduler.step() if scheduler.last_epoch < 5 else None,
    )
    assert scheduler.last_epoch == 5


@pytest.mark.parametrize("kind", ["warm-up", "cosine"])
def test_one_that_the_script_steps_beyond_its_end_is_where_the_run_is(kind):
    optimizer = descent()
    scheduler = ENDING[kind](optimizer)
    followed(optimizer, {"scheduler": scheduler}, scheduler.step)
    assert scheduler.last_epoch == LATE[-1]


def in_turn(optimizer):
    parts = [ConstantLR(optimizer, total_iters=2), OneCycleLR(optimizer, 1.0, total_steps=8)]
    return SequentialLR(optimizer, parts, [2])


CYCLES = {
    "in turn": (10, in_turn),
    "chained": (
        8,
        lambda optimizer: ChainedScheduler(
            [ConstantLR(optimizer, total_iters=2), OneCycleLR(optimizer, 1.0, total_steps=8)]
        ),
    ),
    "chained in turn": (10, lambda optimizer: ChainedScheduler([in_turn(optimizer)])),
}


@pytest.mark.parametrize("kind", CYCLES)
@pytest.mark.parametrize("missed_from", [3, 7])
def test_no_part_is_stepped_beyond_where_it_can_go(kind, missed_from):
    """``OneCycleLR`` raises there, and the peer would end."""
    end, make = CYCLES[kind]
    optimizer = descent()
    scheduler = make(optimizer)
    kept, steps = {"scheduler": scheduler}, [*range(missed_from + 1), 14, 15, 16]

    def step_it():
        if steps_done(scheduler) < end:
            scheduler.step()

    followed(optimizer, kept, step_it, steps)
    assert steps_done(scheduler) == end


def steps_done(scheduler):
    return (
        scheduler.last_epoch
        if hasattr(scheduler, "last_epoch")
        else steps_done(scheduler._schedulers[0])
    )


class OfAUser(LRScheduler):
    """Counts nothing."""

    def __init__(self):
        self.stepped = 0

    def step(self, epoch=None):
        self.stepped += 1


def test_one_that_does_not_count_its_steps_is_left_alone():
    optimizer, own = descent(), OfAUser()
    followed(optimizer, {"own": own, "chained": ChainedScheduler([made()])}, own.step)
    assert own.stepped == len(LATE) - 1


@pytest.mark.parametrize("combined", [ChainedScheduler, partial(SequentialLR, milestones=[8])])
def test_what_steps_others_is_where_the_run_is_and_so_are_they_though_they_are_kept(combined):
    def schedulers(optimizer):
        return [LinearLR(optimizer, 0.1, total_iters=9), ExponentialLR(optimizer, 0.9)]

    optimizer, other = descent(), descent()
    parts, plain = schedulers(optimizer), schedulers(other)
    whole, others_whole = (
        combined(schedulers=parts, optimizer=optimizer),
        combined(schedulers=plain, optimizer=other),
    )
    followed(optimizer, {"warm-up": parts[0], "whole": whole, "decay": parts[1]}, whole.step)
    for _ in range(LATE[-1]):
        other.step()
        others_whole.step()
    assert [part.last_epoch for part in parts] == [part.last_epoch for part in plain]
    assert optimizer.param_groups[0]["lr"] == other.param_groups[0]["lr"]
