from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from gossip.training.unexchanged import STEPS, UnexchangedWarning


@pytest.fixture
def watch() -> Iterator[UnexchangedWarning]:
    found = UnexchangedWarning()
    yield found
    found.over()


def steps(optimizer: torch.optim.Optimizer, count: int) -> list[warnings.WarningMessage]:
    """The warnings while an optimizer steps so often."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(count):
            optimizer.step()
    return said


def sgd() -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)


def test_steps_without_prepare_are_told_once_and_where(watch: UnexchangedWarning) -> None:
    optimizer = sgd()
    assert steps(optimizer, STEPS - 1) == []
    (said,) = steps(optimizer, STEPS)
    assert (
        f"optimizer.step() ran {STEPS} times and nothing was exchanged: peer.prepare() was "
        "not called"
    ) in str(said.message)
    assert said.filename == __file__, "the line that steps is named"


def test_another_optimizer_than_the_prepared_one_is_named(watch: UnexchangedWarning) -> None:
    watch.prepared([sgd()])
    (said,) = steps(torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))]), STEPS)
    assert (
        "peer.prepare() was given another optimizer (SGD) than the optimizer that steps here "
        "(AdamW)" in str(said.message)
    )


def test_nothing_is_said_once_something_was_exchanged(watch: UnexchangedWarning) -> None:
    optimizer = sgd()
    steps(optimizer, STEPS - 1)
    watch.over()
    watch.over()
    assert steps(optimizer, STEPS) == []


def test_steps_of_trials_do_not_count(watch: UnexchangedWarning) -> None:
    with watch.paused():
        assert steps(sgd(), 2 * STEPS) == []
    assert steps(sgd(), STEPS - 1) == []
    assert len(steps(sgd(), 1)) == 1
