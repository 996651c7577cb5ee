"""What a round is stepped with: agreed from what everybody would step with, told with the commit,
set for the step."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from trainer_fakes import FakeNode, FakeNodeSwarm, apply_alone, same_bits, small_model, step

from gossip.core import RATES_MAX
from gossip.core.ledger.rates import agree, are_sound
from gossip.ipc import messages as control
from gossip.training.rates import rates_of, stepping_with


def test_what_is_agreed_was_told_by_somebody_for_each_place() -> None:
    assert agree([]) == agree([(), ()]) == ()
    assert agree([(0.1, 0.9), (0.1, 0.9)]) == (0.1, 0.9)
    assert agree([(0.1, 0.9), (0.3, 0.9), (0.2, 0.5)]) == (0.2, 0.9)
    assert agree([(0.1,), (0.4,)]) == (0.1,), "the lower of two, and not their mean"


def test_a_minority_of_liars_decides_nothing() -> None:
    honest = (0.1, 0.9)
    lies = [
        (1e9, 1e9),
        (0.0, 0.0),
        (math.nan, 0.5),
        (math.inf, 0.5),
        (1.0,),
        (1.0,) * (RATES_MAX + 1),
        (),
    ]
    for lie in lies:
        assert agree([honest, lie, honest]) == honest
        assert agree([lie, honest, honest]) == honest


def test_rates_that_are_no_numbers_are_not_sound() -> None:
    assert are_sound(())
    assert are_sound((0.0, 0.1))
    assert are_sound((1.0,) * RATES_MAX)
    for wrong in ((math.nan,), (math.inf,), (0.1,) * (RATES_MAX + 1)):
        assert not are_sound(wrong)


def groups() -> list[dict]:
    return [
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
        {"lr": torch.tensor(0.5), "betas": (0.8, 0.99)},
    ]


def test_settings_are_numbers_and_those_that_schedulers_change_come_first() -> None:
    assert rates_of(groups()) == (0.1, 0.9, 0.5, 0.8, 0.99, 1.0)
    assert len(rates_of(groups() * 400)) == RATES_MAX
    group = {
        "lr": None,
        "eps": (1e-30, 0.001),
        "k": 7,
        "warm": False,
        "mode": "max",
        "foreach": None,
    }
    assert rates_of([group]) == (1e-30, 0.001, 7.0, 0.0)
    for scheduler_key in ("initial_lr", "max_lr", "params"):
        assert rates_of([{**group, scheduler_key: 3.0}]) == rates_of([group])


def test_every_setting_is_set_in_its_own_form_and_a_counter_goes_on() -> None:
    theirs = [{"lr": 0.5, "eps": (1e-8, 3.0), "k": 8, "warm": True, "decay": 0.2, "power": -0.8}]
    mine = [{"lr": 0.1, "eps": (1e-6, 2.0), "k": 7, "warm": False, "decay": 0.1, "power": -0.5}]
    before = dict(mine[0])
    with stepping_with(mine, rates_of(theirs)):
        assert mine == theirs
        assert [type(value) for value in mine[0].values()] == [
            type(value) for value in theirs[0].values()
        ]
        mine[0]["k"] += 1
    assert mine[0] == {**before, "k": 9}, "the step has counted it from what all had"


def test_a_negative_learning_rate_is_not_taken() -> None:
    mine = [{"lr": 0.1, "power": -0.5}]
    with stepping_with(mine, (-0.1, -0.7)):
        assert mine == [{"lr": 0.1, "power": -0.7}]


def test_a_step_is_with_the_swarms_numbers_and_they_are_put_back() -> None:
    mine = groups()
    lr = mine[1]["lr"]
    with stepping_with(mine, (0.2, 0.8, 0.25, 0.7, 0.9, 1.0)):
        assert mine[0] == {"lr": 0.2, "momentum": 0.8, "nesterov": True}
        assert mine[1]["lr"] is lr, "a compiled optimizer looks at this tensor"
        assert (float(lr), mine[1]["betas"]) == (0.25, (0.7, 0.9))
    assert rates_of(mine) == rates_of(groups())
    assert mine[1]["lr"] is lr
    with stepping_with(mine, (0.2,)):  # of fewer, those
        assert rates_of(mine) == (0.2, 0.9, 0.5, 0.8, 0.99, 1.0)
    with pytest.raises(RuntimeError), stepping_with(mine, (0.2,)):
        raise RuntimeError
    assert rates_of(mine) == rates_of(groups())
    with stepping_with(mine, ()):
        assert rates_of(mine) == rates_of(groups())


def test_a_peer_whose_scheduler_lags_steps_as_the_others_do_and_its_scheduler_goes_on():
    model, optimizer = small_model()
    twin, twin_optimizer = small_model()
    result = np.random.default_rng(0).standard_normal(66).astype(np.float32)

    def node(n: FakeNode) -> None:
        n.prepared()
        assert n.offered(0).rates[:2] == (0.1, 0.9)
        n.put(1, result)
        n.put(2, result)
        n.send(control.ApplyCommand(0, 1, 0.0, (0.025, 0.5)))
        n.send(control.ApplyCommand(1, 2, 0.0))  # of a swarm in which nobody told
        n.expect(control.AppliedReply)
        n.expect(control.AppliedReply)
        n.end(2)

    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, optimizer)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        step(model, optimizer, 0)
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.05
    for lr, momentum in ((0.025, 0.5), (0.1, 0.9)):
        twin_optimizer.param_groups[0].update(lr=lr, momentum=momentum)
        apply_alone(twin, twin_optimizer, result)
    assert same_bits(model, twin)


def test_who_contributes_nothing_tells_no_rates() -> None:
    said = []

    def node(n: FakeNode) -> None:
        n.prepared()
        n.go(0)
        said.append(n.expect(control.Contribute))
        n.lost(0)
        n.end(1)

    with FakeNodeSwarm(node) as swarm:
        swarm.prepare()
        swarm.session._steps.pass_round()
    assert said[0].rates == ()


def test_what_is_no_finite_number_stays_each_peers_own() -> None:
    mine = [{"lr": 0.1, "growth": math.inf, "d0": None, "odd": math.nan}]
    assert rates_of(mine) == (0.1,)
    with stepping_with(mine, (0.2,)):
        assert mine[0]["lr"] == 0.2
        assert (mine[0]["growth"], mine[0]["d0"]) == (math.inf, None)
    theirs = [{"lr": 0.2, "growth": 2.0, "d0": 3.0, "odd": 4.0}]
    with stepping_with(theirs, rates_of(mine)):  # others have other settings: those of _FIRST
        assert theirs == [{"lr": 0.1, "growth": 2.0, "d0": 3.0, "odd": 4.0}]


def test_of_a_group_with_other_keys_only_what_comes_first_is_set() -> None:
    mine = [{"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}]
    with stepping_with(mine, rates_of([{**mine[0], "lr": 0.2, "extra": 7.0}])):
        assert mine == [{"lr": 0.2, "momentum": 0.9, "weight_decay": 0.01}]


def test_settings_within_settings_keep_their_form() -> None:
    class Pair(NamedTuple):
        one: float
        two: float

    mine = [{"lr": 0.1, "nested": ((1.0, 2.0), [3.0]), "pair": Pair(1.0, 2.0)}]
    theirs = [{"lr": 0.1, "nested": ((4.0, 2.0), [5.0]), "pair": Pair(2.0, 7.0)}]
    with stepping_with(mine, rates_of(theirs)):
        assert mine == theirs
        assert isinstance(mine[0]["pair"], Pair)
