"""What an optimizer keeps, and the session: refused by name before there is anything to lose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from trainer_fakes import (
    FakeNode,
    FakeNodeSwarm,
    echo,
    flat_parameters,
    pack_state,
    prepared_swarm,
    small_model,
    step,
)

from gossip.core import events
from gossip.errors import UnsupportedModel
from gossip.ipc import messages as control


class KeepingOptimizer(torch.optim.Optimizer):
    """Keeps ``value`` of each parameter from its step ``since`` on."""

    def __init__(
        self, model: torch.nn.Module, value: Any, since: int = 1, lr: float | None = 0.1
    ) -> None:
        super().__init__(model.parameters(), {"lr": lr})
        self.value, self.since, self.taken = value, since, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.taken += 1
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(parameter.grad, alpha=-(self.param_groups[0]["lr"] or 0.01))
            if self.taken >= self.since:
                self.state[parameter]["strange"] = self.value


@pytest.mark.parametrize("value", [object(), torch.eye(2).to_sparse()])
@pytest.mark.parametrize(
    ("options", "since"), [({}, 1), ({}, 3), ({"local_steps": 4, "outer": "mean"}, 1)]
)
def test_what_cannot_be_kept_is_named(value: Any, options: dict[str, Any], since: int) -> None:
    model, _ = small_model()
    optimizer = KeepingOptimizer(model, value, since)
    with FakeNodeSwarm(echo, **options) as swarm:
        swarm.session.prepare(model, optimizer)
        with pytest.raises(UnsupportedModel, match=r"strange of 0\.weight"):
            take_steps(model, optimizer, 2 * since)
    assert optimizer.taken < 2 * since


def test_a_kept_object_whose_state_cannot_be_saved_is_refused_at_once() -> None:
    class Strange(torch.nn.Module):
        def get_extra_state(self) -> object:
            return [object()]

    says = pytest.raises(UnsupportedModel, match=r"ema\._extra_state\.0 is a object")
    with FakeNodeSwarm(lambda node: node.halt()) as swarm, says:
        swarm.session.keep(ema=Strange())


def test_peers_attest_no_values_of_buffers_of_kept_modules() -> None:
    module = torch.nn.BatchNorm1d(2)
    with prepared_swarm(echo) as (swarm, _, _):
        swarm.session.keep(module=module)
        plan = swarm.session._run.model.plan_state
        before = {name: part.digest() for name, part in plan().items()}
        module.running_mean.add_(1.0)
        assert [name for name, part in plan().items() if part.digest() != before[name]] == ["own"]


def take_steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for seed in range(steps):
        step(model, optimizer, seed)


def test_an_optimizer_without_a_learning_rate_trains() -> None:
    model, _ = small_model()
    before = flat_parameters(model)
    optimizer = KeepingOptimizer(model, 1, lr=None)
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, optimizer)
        step(model, optimizer, 0)
        assert swarm.session.round == 1
    assert not torch.equal(flat_parameters(model), before)


def test_a_returning_peer_takes_a_state_larger_than_its_parameters_again_and_again() -> None:
    theirs, _ = small_model(9)
    donor = KeepingOptimizer(theirs, torch.randn(50, 50, dtype=torch.float64))
    step(theirs, donor, 0)
    state = pack_state(theirs, donor, {})
    model, _ = small_model()
    optimizer = KeepingOptimizer(model, None)

    def node(n: FakeNode) -> None:
        n.prepared()
        for round_id in (40, 50):
            n.restore(round_id, state)
            assert n.expect(events.Restored) == events.Restored(round_id, "")
        n.end(50)

    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, optimizer)
        swarm.session._loop.next_round()
    assert pack_state(model, optimizer, {}) == state


class ScheduleFree(torch.optim.Optimizer):
    """Keeps the weights that it trains at half of what evaluation sees."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model.parameters(), {"lr": 0.1, "train_mode": True})

    def train(self) -> None:
        self._scale(0.5, True)

    def eval(self) -> None:
        self._scale(2.0, False)

    def _scale(self, factor: float, mode: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] != mode:
                for parameter in group["params"]:
                    parameter.data.mul_(factor)
            group["train_mode"] = mode

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            assert group["train_mode"], "it steps on the weights that it trains"
            for parameter in group["params"]:
                parameter.sub_(parameter.grad)


def test_a_schedule_free_peer_applies_missed_rounds_to_the_weights_that_it_trains() -> None:
    model, _ = small_model()
    optimizer = ScheduleFree(model)
    before = model[0].weight.detach().clone()

    def node(n: FakeNode) -> None:
        n.prepared()
        n.apply(0, 0, np.ones(66, np.float32))
        n.go(1)
        n.expect(control.AppliedReply)
        n.halt()

    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, optimizer)
        optimizer.eval()
        swarm.session._loop.next_round()
        assert not optimizer.param_groups[0]["train_mode"], "the script still evaluates"
        assert torch.equal(model[0].weight, 2.0 * (before - 1.0))


def test_a_schedule_free_peer_in_training_loads_the_state_of_one_that_evaluates() -> None:
    theirs, _ = small_model(9)
    donor = ScheduleFree(theirs)
    trained = theirs[0].weight.detach().clone()
    donor.eval()
    state = pack_state(theirs, donor, {})
    model, _ = small_model()
    optimizer = ScheduleFree(model)

    def node(n: FakeNode) -> None:
        n.prepared()
        n.restored(4, state)
        n.end(4)

    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, optimizer)
    assert optimizer.param_groups[0]["train_mode"]
    assert torch.equal(model[0].weight, trained)
