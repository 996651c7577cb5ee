"""``each_step``: functions that run once for each step of the run, missed ones included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from trainer_fakes import (
    FakeNode,
    FakeNodeSwarm,
    echo,
    pack_state,
    prepared_swarm,
    same_bits,
    small_model,
    step,
)

from gossip.core import events
from gossip.errors import ConfigError, TrainingWarning
from gossip.ipc import messages as control

ONES = np.full(66, 0.5, np.float32)


class Average:
    """A moving average of the weights."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model, self.updates = model, 0
        self.value = torch.zeros(66)

    def update(self) -> None:
        self.updates += 1
        flat = torch.cat([p.detach().reshape(-1) for p in self._model.parameters()])
        self.value.lerp_(flat, 0.25)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value.clone(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.updates = state["value"].clone(), state["updates"]


def halt(n: FakeNode) -> None:
    """Let the trainer leave, whatever it has yet to report."""
    while not isinstance(said := n.next(), control.Close):
        assert isinstance(said, control.AppliedReply)
    n.send(events.Halt(said.reason, 0))


def late(n: FakeNode) -> None:
    """Rounds 1 and 2 are decided without this peer; round 3 is lost, round 4 is a collective
    operation, and round 1 comes twice."""
    n.first_update()
    n.apply(0, 0, ONES)
    n.apply(1, 1, ONES)
    n.apply(2, 2, ONES)
    n.apply(1, 1, ONES)
    n.send(control.ApplyCommand(3, -1, 0.0))
    n.send(control.ApplyCommand(4, -1, 0.0, is_step=False))
    n.go(5, collectives=1)
    n.expect(control.AppliedReply)
    while not isinstance(n.next(), control.Contribute):
        pass
    n.apply(5, 3, ONES)
    n.go(6, collectives=1)
    halt(n)


def test_a_function_is_called_once_for_each_step_of_the_run_with_the_weights_of_that_step():
    (model, optimizer), (twin, twin_optimizer) = small_model(), small_model()
    expected, steps = Average(twin), []
    with FakeNodeSwarm(late) as swarm:
        peer = swarm.session
        peer.prepare(model, optimizer)
        average = Average(model)

        @peer.each_step
        def follow() -> None:
            average.update()
            steps.append(peer.step)
            assert not torch.is_grad_enabled()

        stepped = []
        for seed in range(2):
            step(model, optimizer, seed)
            stepped.append(peer.stepped)
    for _ in range(4):  # nobody had an update in the fourth of five
        for parameter in twin.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
        twin_optimizer.step()
        expected.update()
    assert steps == [1, 2, 3, 5]
    assert same_bits(model, twin)
    assert torch.equal(average.value, expected.value)
    assert stepped == [False, True], "four steps in the first call, and one in the second"


def test_a_weight_that_is_clamped_each_step_is_clamped_in_steps_that_were_missed():
    largest = []
    with prepared_swarm(late) as (swarm, model, optimizer):

        def clamp() -> None:
            for parameter in model.parameters():
                parameter.clamp_(-0.05, 0.05)
            largest.append(max(p.abs().max().item() for p in model.parameters()))

        swarm.session.each_step(clamp)
        for seed in range(2):
            step(model, optimizer, seed)
    assert len(largest) == 4
    assert max(largest) == pytest.approx(0.05)


@pytest.mark.parametrize("kept_before", [True, False])
def test_a_peer_that_was_given_a_state_goes_on_from_the_average_in_it(kept_before: bool):
    """The rounds that others have had since are applied once the script has made its average."""
    other, other_optimizer = small_model(seed=3)
    theirs = Average(other)
    for seed in range(4):
        step(other, other_optimizer, seed)
        theirs.update()
    state = pack_state(other, other_optimizer, {"average": theirs.state_dict()})

    def node(n: FakeNode) -> None:
        n.prepared()
        n.restored(4, state)
        n.apply(4, 0, ONES)
        n.apply(5, 1, ONES)
        n.go(6)
        while not isinstance(n.next(), control.Contribute):
            pass
        n.apply(6, 2, ONES)
        n.go(7)
        halt(n)

    model, optimizer = small_model()
    with FakeNodeSwarm(node) as swarm:
        peer = swarm.session
        average = Average(model)
        if kept_before:
            peer.keep(average=average)
        peer.prepare(model, optimizer)
        if not kept_before:
            peer.keep(average=average)
        peer.each_step(average.update)
        assert peer.step == 4, "the rounds since then are yet to be applied"
        assert average.updates == 4
        step(model, optimizer, 9)
        for _ in range(3):
            for parameter in other.parameters():
                parameter.grad = torch.full_like(parameter, 0.5)
            other_optimizer.step()
            theirs.update()
        assert same_bits(model, other)
        assert average.updates == theirs.updates == 7
        assert torch.equal(average.value, theirs.value)


def test_a_state_of_others_brings_the_number_of_its_steps():
    other, other_optimizer = small_model(seed=3)
    scheduler = torch.optim.lr_scheduler.ConstantLR(other_optimizer)
    for _ in range(4):
        other_optimizer.step()
        scheduler.step()
    state = pack_state(other, other_optimizer, {"scheduler": scheduler.state_dict()})

    def node(n: FakeNode) -> None:
        n.prepared()
        n.restored(6, state, collectives=2)
        n.apply(6, 0, ONES)
        n.send(control.ApplyCommand(7, -1, 0.0, is_step=False))
        for round_id in range(8, 11):
            n.go(round_id, collectives=3)
            while not isinstance(n.next(), control.Contribute):
                pass
            n.apply(round_id, 1, ONES)
        n.go(11, collectives=3)
        halt(n)

    steps = []
    with prepared_swarm(node) as (swarm, model, optimizer):
        peer, scheduler = swarm.session, torch.optim.lr_scheduler.ConstantLR(optimizer)
        peer.keep(scheduler=scheduler)
        peer.each_step(lambda: steps.append(peer.step))
        assert peer.step == 4
        for seed in range(3):
            step(model, optimizer, seed)
            scheduler.step()
    assert steps == [5, 6, 7, 8]
    assert scheduler.last_epoch == 8


def test_a_warning_says_that_kept_objects_of_others_differ():
    state = pack_state(*small_model(seed=3), {"average": {}})

    def node(n: FakeNode) -> None:
        n.prepared()
        n.restored(9, state, settings=False)
        n.go(9)
        halt(n)

    model, optimizer = small_model()
    with (
        FakeNodeSwarm(node) as swarm,
        pytest.warns(TrainingWarning, match="not copied from the other peers"),
    ):
        swarm.session.prepare(model, optimizer)


def test_a_state_that_comes_within_a_step_is_loaded_before_what_follows_its_next_step():
    other, other_optimizer = small_model(seed=3)
    theirs = Average(other)
    step(other, other_optimizer, 0)
    theirs.update()
    state = pack_state(other, other_optimizer, {"average": theirs.state_dict()})

    def node(n: FakeNode) -> None:
        n.first_update()
        n.restored(9, state)
        n.apply(9, 0, ONES)
        n.go(10)
        halt(n)

    with prepared_swarm(node) as (swarm, model, optimizer):
        average = Average(model)
        swarm.session.keep(average=average)
        swarm.session.each_step(average.update)
        step(model, optimizer, 1)
        for parameter in other.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
        other_optimizer.step()
        theirs.update()
        assert average.updates == 2
        assert torch.equal(average.value, theirs.value)


def test_draws_in_it_are_the_same_on_all_peers_and_leave_those_of_the_script_alone():
    found = []
    for peer in (0, 1):
        model, optimizer = small_model()
        with FakeNodeSwarm(echo, peer=peer, peers=2, seed=7) as swarm:
            swarm.session.prepare(model, optimizer)
            drawn: list[float] = []
            swarm.session.each_step(lambda drawn=drawn: drawn.append(torch.rand(()).item()))
            for seed in range(3):
                step(model, optimizer, seed)
            found.append((drawn, torch.rand(()).item()))
    (one, mine), (other, theirs) = found
    assert one == other
    assert len(set(one)) == 3
    assert mine != theirs


def test_an_optimizer_that_draws_steps_alike_on_all_peers():
    class Noisy(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(torch.randn_like(parameter), alpha=0.01)

    models = []
    for peer in (0, 1):
        model, _ = small_model()
        optimizer = Noisy(model.parameters(), lr=0.1)
        with FakeNodeSwarm(echo, peer=peer, peers=2, seed=7) as swarm:
            swarm.session.prepare(model, optimizer)
            for seed in range(3):
                step(model, optimizer, seed)
        models.append(model)
    assert same_bits(*models)


def test_with_local_steps_it_is_refused():
    with FakeNodeSwarm(echo, local_steps=2) as swarm:
        swarm.prepare()
        with pytest.raises(ConfigError):
            swarm.session.each_step(lambda: None)


def test_rounds_that_pass_before_it_is_registered_are_applied_after_that_or_it_is_refused():
    def node(n: FakeNode) -> None:
        """A late starter: the others have had two rounds, and need give it no state."""
        n.prepared()
        n.apply(0, 0, ONES)
        n.apply(1, 1, ONES)
        n.go(2)
        halt(n)

    steps: list[int] = []
    with FakeNodeSwarm(node) as swarm:
        swarm.prepare()
        swarm.session.each_step(lambda: steps.append(swarm.session.step))
        assert swarm.session.alive_peers == 1
        with pytest.raises(ConfigError):
            swarm.session.each_step(lambda: None)
    assert steps == [1, 2]
