from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from gossip.errors import ConfigError
from gossip.training.unprepared import STEPS, UnpreparedOptimizers


@pytest.fixture
def watch() -> Iterator[UnpreparedOptimizers]:
    found = UnpreparedOptimizers()
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


def test_steps_without_prepare_are_told_once_and_where(watch: UnpreparedOptimizers) -> None:
    optimizer = sgd()
    assert steps(optimizer, STEPS - 1) == []
    (said,) = steps(optimizer, STEPS)
    assert (
        f"optimizer.step() ran {STEPS} times and nothing was exchanged: peer.prepare() was "
        "not called"
    ) in str(said.message)
    assert said.filename == __file__, "the line that steps is named"


def test_another_optimizer_than_the_prepared_one_is_named(watch: UnpreparedOptimizers) -> None:
    prepared = sgd()
    watch.prepared([prepared], prepared, alone=False)
    (said,) = steps(torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))]), STEPS)
    assert (
        "peer.prepare() received a different optimizer (SGD) from the one that steps here "
        "(AdamW)" in str(said.message)
    )


def test_nothing_is_said_once_something_was_exchanged(watch: UnpreparedOptimizers) -> None:
    optimizer = sgd()
    steps(optimizer, STEPS - 1)
    watch.exchanged()
    assert steps(optimizer, STEPS - 1) == []


def test_steps_of_trials_do_not_count(watch: UnpreparedOptimizers) -> None:
    with watch.paused():
        assert steps(sgd(), 2 * STEPS) == []
    assert steps(sgd(), STEPS - 1) == []
    assert len(steps(sgd(), 1)) == 1


def test_one_that_steps_in_several_rounds_is_told_once_unless_this_peer_is_alone(
    watch: UnpreparedOptimizers,
) -> None:
    prepared, own = sgd(), sgd()
    said = []
    for alone in (True, False):
        watch.prepared([prepared], prepared, alone=alone)
        for _ in range(3):
            watch.exchanged()
            said.append(len(steps(prepared, 1) + steps(own, 2)))
    assert said == [0, 0, 0, 1, 0, 0]


def test_one_that_is_made_anew_in_each_round_is_an_inner_loop(watch: UnpreparedOptimizers) -> None:
    prepared = sgd()
    watch.prepared([prepared], prepared, alone=False)
    for _ in range(3):
        watch.exchanged()
        assert steps(sgd(), 2) == []


def test_an_inner_loop_may_be_long(watch: UnpreparedOptimizers) -> None:
    prepared = sgd()
    watch.prepared([prepared], prepared, alone=False)
    watch.exchanged()
    assert steps(sgd(), 2 * STEPS) == []


def test_many_steps_of_another_over_prepared_ones_are_told(watch: UnpreparedOptimizers) -> None:
    prepared = sgd()
    watch.prepared([prepared], prepared, alone=False)
    watch.exchanged()
    other = torch.optim.AdamW(prepared.param_groups[0]["params"])
    assert len(steps(other, 2 * STEPS)) == 1


def test_a_batch_on_which_another_one_steps_prepared_parameters_is_refused(
    watch: UnpreparedOptimizers,
) -> None:
    prepared = sgd()
    other = torch.optim.AdamW(prepared.param_groups[0]["params"])
    watch.prepared([prepared], prepared, alone=False)
    other.step()
    watch.exchanged()  # as behind an inner loop
    watch.check_passed()
    other.step()
    with pytest.raises(ConfigError, match="AdamW"):
        watch.check_passed()
    watch.begin_batch()
    watch.check_passed()


def test_an_optimizer_that_steps_the_prepared_one_is_its_part(watch: UnpreparedOptimizers) -> None:
    prepared = sgd()

    class Wrapper(torch.optim.Optimizer):
        def __init__(self) -> None:
            super().__init__(prepared.param_groups[0]["params"], {})

        def step(self) -> None:  # type: ignore[override]
            watch.exchanged()
            prepared.step()

    watch.prepared([prepared], prepared, alone=False)
    Wrapper().step()
    watch.check_passed()
