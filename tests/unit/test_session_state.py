"""What an optimizer keeps, and the session: refused by name before there is anything to lose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trainer_fakes import FakeNode, FakeNodeSwarm, backward, echo, flat_parameters, small_model

from gossip.errors import UnsupportedModel
from gossip.ipc import messages as control
from gossip.training.state import pack_state


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
def test_what_cannot_be_kept_is_named_when_it_comes(
    value: Any, options: dict[str, Any], since: int
) -> None:
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


def take_steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for seed in range(steps):
        backward(model, seed)
        optimizer.step()


def test_an_optimizer_without_a_learning_rate_trains() -> None:
    model, _ = small_model()
    before = flat_parameters(model)
    optimizer = KeepingOptimizer(model, 1, lr=None)
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, optimizer)
        backward(model, 0)
        optimizer.step()
        assert swarm.session.round == 1
    assert not torch.equal(flat_parameters(model), before)


def test_a_returning_peer_takes_a_state_larger_than_its_parameters_again_and_again() -> None:
    theirs, _ = small_model(9)
    donor = KeepingOptimizer(theirs, torch.randn(50, 50, dtype=torch.float64))
    backward(theirs, 0)
    donor.step()
    state = pack_state(theirs, donor, {})
    model, _ = small_model()
    optimizer = KeepingOptimizer(model, None)

    def node(n: FakeNode) -> None:
        n.prepared()
        for round_id in (40, 50):
            n.restore(round_id, state)
            assert n.expect(control.RestoredReply) == control.RestoredReply(round_id, "")
        n.go(50)
        n.halt()

    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, optimizer)
        swarm.session.next_round()
    assert pack_state(model, optimizer, {}) == state
