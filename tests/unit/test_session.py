"""The session against a scripted node: what a step does to the model, whatever the node does."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from trainer_fakes import (
    FakeNode,
    FakeNodeSwarm,
    backward,
    echo,
    flat_parameters,
    pack_state,
    part_sizes,
    prepared_swarm,
    same_bits,
    small_model,
    step,
)

from gossip.core import events
from gossip.errors import ConfigError, NodeLost, Refused, SwarmError, UnsupportedModel
from gossip.ipc import messages as control
from gossip.training.layout import PRESENT
from gossip.transport.lending import Lender

ELEMENTS = 5 * 7 + 7 + 7 * 3 + 3


def vector(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(ELEMENTS).astype(np.float32)


def step_with(model, optimizer, gradient: np.ndarray) -> None:
    """What torch alone does with that gradient."""
    flat = torch.from_numpy(gradient.copy())
    for parameter, piece in zip(
        model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True
    ):
        parameter.grad = piece.view_as(parameter).clone()
    optimizer.step()


# --- warnings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "peers", "warns"),
    [
        (lambda: torch.nn.BatchNorm1d(7), 2, True),
        (lambda: torch.nn.BatchNorm1d(7), 1, False),
        (lambda: torch.nn.BatchNorm1d(7).eval(), 2, False),
        (lambda: torch.nn.BatchNorm1d(7, track_running_stats=False), 2, False),
        (lambda: torch.nn.LayerNorm(7), 2, False),
    ],
    ids=["several", "alone", "frozen", "without", "other"],
)
def test_running_statistics_of_several_peers_are_reported_at_prepare(
    make: Any, peers: int, warns: bool
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), make())
    with FakeNodeSwarm(echo, peers=peers) as swarm, warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        swarm.session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert [Path(each.filename).name for each in found] == ["test_session.py"] * warns
    assert all("running statistics" in str(each.message) for each in found)


@pytest.mark.parametrize(
    ("scales", "warns"), [((None, 1.0), True), ((0.0, 1.0), True), ((1.0, 0.0, None), False)]
)
def test_a_first_step_without_a_gradient_is_reported_once(
    scales: tuple[float | None, ...], warns: bool
) -> None:
    with warnings.catch_warnings(record=True) as got, prepared_swarm(echo) as (swarm, *both):
        warnings.simplefilter("always")
        model, optimizer = both
        for scale in scales:
            optimizer.zero_grad()
            if scale is not None:
                (scale * model(torch.ones(4, 5)).sum()).backward()
            optimizer.step()
    assert [Path(each.filename).name for each in got] == ["test_session.py"] * warns
    assert all("finds no gradient" in str(each.message) for each in got)
    logged = [json.loads(line) for line in swarm.nodes[0].logs]
    assert logged == [{"round": 0, "warning": str(each.message)} for each in got]


# --- a step ---------------------------------------------------------------------------------------


def test_training_through_a_swarm_of_one_is_bit_identical_to_training_without():
    model, optimizer = small_model()
    twin, twin_optimizer = small_model()
    with FakeNodeSwarm(echo) as swarm:
        same_model, same_optimizer = swarm.session.prepare(model, optimizer)
        assert same_model is model
        assert same_optimizer is optimizer
        for seed in range(10):
            step(model, optimizer, seed)
            step(twin, twin_optimizer, seed)
            assert same_bits(model, twin)
        assert swarm.session.round == 10


def test_the_first_update_that_the_node_sees_is_the_first_gradient():
    seen = []

    def node(n: FakeNode) -> None:
        said = n.prepared()
        # 4 parameters
        assert (said.elements, said.round_id) == (ELEMENTS + 4, 0)
        contribution = n.offered(0, slot=2)
        assert contribution.slot == 2
        seen.append(n.arena.updates[2].copy())
        n.apply(0, 1, vector(1))
        assert n.expect(control.AppliedReply) == control.AppliedReply(0, 1)
        n.end(1)

    with prepared_swarm(node) as (_, model, optimizer):
        backward(model, 3)
        expected = torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy().copy()
        optimizer.step()
        assert np.array_equal(seen[0], [*expected, *[np.float32(PRESENT)] * 4])
        # and afterwards .grad holds what was applied
        assert np.array_equal(
            torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy(), vector(1)
        )


def test_rounds_committed_without_us_are_applied_in_order_before_step_returns():
    model, optimizer = small_model()
    twin, twin_optimizer = small_model()

    def node(n: FakeNode) -> None:
        n.first_update()
        for round_id in range(4):
            n.put(round_id, vector(round_id))
        n.send(*[control.ApplyCommand(round_id, round_id, 0.0) for round_id in range(3)])
        n.send(control.ApplyCommand(3, 3, 0.0), control.ApplyCommand(4, -1, 0.0))
        assert [n.expect(control.AppliedReply) for _ in range(5)] == [
            *[control.AppliedReply(r, r) for r in range(4)],
            control.AppliedReply(4, -1),
        ]
        n.end(5)

    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, optimizer)
        step(model, optimizer, 0)
        assert swarm.session.round == 5
        for seed in range(4):
            step_with(twin, twin_optimizer, vector(seed))
        assert same_bits(model, twin)


def test_what_the_swarm_did_before_our_gradient_came_is_applied_too():
    """Rounds queue up while the trainer computes; its late update is sent nevertheless."""
    model, optimizer = small_model()
    twin, twin_optimizer = small_model()
    queued = threading.Event()

    def node(n: FakeNode) -> None:
        n.prepared()
        n.go(0)
        n.apply(0, 0, vector(0))
        n.apply(1, 1, vector(1))
        queued.set()
        assert n.expect(control.Contribute).round_id == 0
        assert n.expect(control.AppliedReply).round_id == 0
        assert n.expect(control.AppliedReply).round_id == 1
        n.end(2)

    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, optimizer)
        backward(model, 0)
        assert queued.wait(20)
        optimizer.step()
        step_with(twin, twin_optimizer, vector(0))
        step_with(twin, twin_optimizer, vector(1))
        assert same_bits(model, twin)
        assert swarm.session.round == 2


def test_a_parameter_difference_is_added_before_the_step():
    model, optimizer = small_model()
    twin, twin_optimizer = small_model()

    def node(n: FakeNode) -> None:
        n.prepared()
        said = n.offered(0, slot=1, want_parameters=True)
        assert said.parameters
        assert np.array_equal(n.arena.parameters[1], [*flat_parameters(twin).numpy(), 0, 0, 0, 0])
        n.put(2, vector(1))
        n.arena.mixes[2][:ELEMENTS] = vector(2)
        n.send(control.ApplyCommand(0, 2, 0.25))
        n.expect(control.AppliedReply)
        n.end(1)

    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, optimizer)
        step(model, optimizer, 0)
    flat = torch.from_numpy(vector(2))
    with torch.no_grad():
        for parameter, piece in zip(
            twin.parameters(), flat.split([p.numel() for p in twin.parameters()]), strict=True
        ):
            parameter.add_(piece.view_as(parameter), alpha=0.25)
    step_with(twin, twin_optimizer, vector(1))
    assert same_bits(model, twin)


def test_a_lost_round_changes_nothing_and_the_next_follows():
    model, optimizer = small_model()
    before = flat_parameters(model)

    def node(n: FakeNode) -> None:
        n.first_update()
        n.send(control.ApplyCommand(0, -1, 0.0))
        assert n.expect(control.AppliedReply) == control.AppliedReply(0, -1)
        n.end(1)

    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, optimizer)
        step(model, optimizer, 0)
        assert swarm.session.round == 1
    assert torch.equal(flat_parameters(model), before)


def test_the_loss_travels_with_the_update():
    with prepared_swarm(echo) as (swarm, model, optimizer):
        backward(model, 0)
        swarm.session.log(loss=torch.tensor(0.75), note="first")
        optimizer.param_groups[0]["lr"] = 0.05
        optimizer.step()
        step(model, optimizer, 1)
        backward(model, 2)
        swarm.session.log(loss=float("nan"))
        optimizer.step()
    said = [m for m in swarm.nodes[0].heard if isinstance(m, control.Contribute)]
    assert [m.loss for m in said] == [0.75, None, None]
    assert [json.loads(line) for line in swarm.nodes[0].logs] == [
        {"round": 0, "loss": 0.75, "note": "first"},
        {"round": 2, "loss": "nan"},
    ]


def test_the_update_says_whether_it_is_finite():
    with prepared_swarm(echo) as (swarm, model, optimizer):
        step(model, optimizer, 0)
        backward(model, 1)
        next(model.parameters()).grad.view(-1)[0] = float("nan")
        optimizer.step()
    assert [m.finite for m in swarm.nodes[0].heard if isinstance(m, control.Contribute)] == [
        True,
        False,
    ]


def test_a_closure_is_evaluated_once_and_its_loss_returned():
    with prepared_swarm(echo) as (swarm, model, optimizer):
        calls = []

        def closure():
            calls.append(torch.is_grad_enabled())
            optimizer.zero_grad()
            loss = model(torch.ones(2, 5)).square().mean()
            loss.backward()
            return loss

        with torch.no_grad():
            loss = optimizer.step(closure)
        assert calls == [True]
        assert next(
            m for m in swarm.nodes[0].heard if isinstance(m, control.Contribute)
        ).loss == pytest.approx(float(loss.detach()))


class CallsClosure(torch.optim.Optimizer):
    def step(self, closure=None):
        if closure is None:
            return
        if self.defaults["uses"] in ("None", "zeros"):
            self.zero_grad(self.defaults["uses"] == "None")
        loss, parameters = closure(), [p for g in self.param_groups for p in g["params"]]
        lr = loss.item() if self.defaults["uses"] == "loss" else 0.1
        for p in parameters:
            p.data.add_(p.grad, alpha=loss if self.defaults["uses"] == "alpha" else -lr)
        if self.defaults["uses"] == "gradients":
            closure()


@pytest.mark.parametrize(
    ("uses", "refusal"),
    [
        ("", ""),
        ("loss", "computes with the loss"),
        ("alpha", "meta tensor"),
        ("gradients", "then calls its closure"),
        ("None", "then calls its closure"),
        ("zeros", "then calls its closure"),
    ],
)
def test_a_closure_within_the_step_gives_neither_a_loss_nor_new_gradients(uses, refusal):
    model, twin = small_model()[0], small_model()[0]
    optimizer = CallsClosure(model.parameters(), {"uses": uses})
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, optimizer)

        def closure():
            backward(model, 0)
            return torch.tensor(1.0)

        if refusal:
            with pytest.raises((UnsupportedModel, RuntimeError), match=refusal):
                optimizer.step(closure)
        else:
            optimizer.step(closure)
            step(twin, torch.optim.SGD(twin.parameters(), 0.1), 0)
            assert same_bits(model, twin)


class NeedsClosure(torch.optim.SGD):
    def step(self, closure):
        return super().step(closure)


def test_a_step_that_needs_a_closure_is_made_for_rounds_before_the_scripts_first_step():
    def node(n):
        n.prepared()
        n.apply(0, 0, np.ones(66, np.float32))
        n.go(1)
        n.expect(control.AppliedReply)
        n.halt()

    model = small_model()[0]
    optimizer = NeedsClosure(model.parameters(), 0.1)
    before = next(model.parameters()).detach().clone()
    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, optimizer)
        swarm.session._run.exchange.wait_go()
    assert torch.allclose(next(model.parameters()), before - 0.1)


def test_a_trainer_that_waits_for_a_slow_round_is_not_stalled(monkeypatch):
    from gossip.training import serving

    monkeypatch.setattr(serving, "WAKE_S", 0.001)

    def node(n: FakeNode) -> None:
        n.first_update()
        before = n.arena._words[3]
        while n.arena._words[3] == before:  # it shows that it is there, though nothing happens
            time.sleep(0.001)
        assert n.arena.progress()[0] == 0
        n.applied(0, 0, vector(0))
        assert n.arena.progress()[0] == 1
        n.end(1)

    with prepared_swarm(node) as (_, model, optimizer):
        step(model, optimizer, 0)


# --- it stays an optimizer ------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["scheduler", "prepare"])
def test_schedulers_made_before_and_after_prepare_work_without_a_warning(first, recwarn):
    model, optimizer = small_model()
    twin, twin_optimizer = small_model()
    with FakeNodeSwarm(echo) as swarm:
        if first == "scheduler":
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
            swarm.session.prepare(model, optimizer)
        else:
            swarm.session.prepare(model, optimizer)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        twin_scheduler = torch.optim.lr_scheduler.StepLR(twin_optimizer, 2, gamma=0.5)
        for seed in range(6):
            for m, o, s in ((model, optimizer, scheduler), (twin, twin_optimizer, twin_scheduler)):
                step(m, o, seed)
                s.step()
        assert optimizer.param_groups[0]["lr"] == twin_optimizer.param_groups[0]["lr"] == 0.0125
        assert same_bits(model, twin)
        assert isinstance(optimizer, torch.optim.SGD)
        assert repr(optimizer).startswith("SGD")
        assert optimizer.state_dict().keys() == twin_optimizer.state_dict().keys()
    assert not [w for w in recwarn if "lr_scheduler" in str(w.message)]


def test_hooks_of_the_optimizer_see_the_aggregate():
    model, optimizer = small_model()
    norms = []
    optimizer.register_step_pre_hook(lambda *_: norms.append(float(model[0].bias.grad.norm())))
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, optimizer)
        backward(model, 0)
        expected = float(model[0].bias.grad.norm())
        optimizer.step()
    assert norms == [expected]


def test_what_cannot_be_exchanged_is_refused_before_anything_is_sent():
    model, _ = small_model()
    with FakeNodeSwarm(lambda n: n.halt()) as swarm:
        with pytest.raises(UnsupportedModel, match="LBFGS"):
            swarm.session.prepare(model, torch.optim.LBFGS(model.parameters()))
        with pytest.raises(ConfigError, match=r"takes a torch.optim.Optimizer"):
            swarm.session.prepare(model, torch.optim.lr_scheduler)


def test_parameters_are_fixed_once_they_are_exchanged():
    with prepared_swarm(echo) as (swarm, model, optimizer):
        with pytest.raises(UnsupportedModel, match="add_param_group"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
        optimizer.param_groups[0]["params"].append(torch.nn.Parameter(torch.zeros(1)))
        with pytest.raises(UnsupportedModel, match="param_groups"):
            optimizer.step()
        with pytest.raises(ConfigError, match="prepare was called twice"):
            swarm.session.prepare(model, optimizer)


# --- state ----------------------------------------------------------------------------------------


def other_state(seed: int = 9) -> tuple[torch.nn.Module, torch.optim.Optimizer, bytes]:
    model, optimizer = small_model(seed)
    for at in range(3):
        step(model, optimizer, at)
    return model, optimizer, pack_state(model, optimizer, {})


def test_a_swarm_that_is_ahead_hands_its_state_over_before_the_first_step():
    theirs, their_optimizer, state = other_state()

    def node(n: FakeNode) -> None:
        said = n.prepared()
        assert said.state != blake2b(state, digest_size=16).digest()
        n.restore(40, state)
        assert n.expect(events.Restored) == events.Restored(40, "")
        n.end(40)

    with prepared_swarm(node) as (swarm, model, optimizer):
        assert swarm.session.round == 40
    assert pack_state(model, optimizer, {}) == pack_state(theirs, their_optimizer, {})


def test_a_state_that_comes_in_the_middle_of_a_step_replaces_the_round():
    theirs, their_optimizer, state = other_state()

    def node(n: FakeNode) -> None:
        n.first_update()
        n.restore(70, state)
        n.apply(70, 0, vector(5))  # made meanwhile, without us
        assert n.expect(events.Restored) == events.Restored(70, "")
        assert n.expect(control.AppliedReply) == control.AppliedReply(70, 0)
        n.end(71)

    with prepared_swarm(node) as (swarm, model, optimizer):
        step(model, optimizer, 0)
        assert swarm.session.round == 71
    step_with(theirs, their_optimizer, vector(5))
    assert pack_state(model, optimizer, {}) == pack_state(theirs, their_optimizer, {})


def test_a_state_that_does_not_fit_is_refused_and_told():
    model, optimizer = small_model()
    before = pack_state(model, optimizer, {})
    wide = torch.nn.Linear(5, 99)

    def node(n: FakeNode) -> None:
        n.prepared()
        n.restore(40, pack_state(wide, torch.optim.SGD(wide.parameters(), lr=0.1), {}))
        said = n.expect(events.Restored)
        assert "in the packed state" in said.error or "the packed state has no" in said.error
        n.send(events.Halt("refused by the swarm: another model", 6))

    with FakeNodeSwarm(node) as swarm, pytest.raises(Refused, match="another model"):
        swarm.session.prepare(model, optimizer)
    assert pack_state(model, optimizer, {}) == before


def test_a_snapshot_is_the_state_of_its_round():
    snapshots = []

    def node(n: FakeNode) -> None:
        n.first_update()
        n.put(0, vector(0))
        n.send(control.ApplyCommand(0, 0, 0.0), events.TakeSnapshot())
        n.expect(control.AppliedReply)
        said = n.expect(control.Snapshot)
        assert said.round_id == 1
        snapshots.append(os.pread(n.fds.pop(0), said.nbytes, 0))
        n.end(1)

    with prepared_swarm(node) as (_, model, optimizer):
        step(model, optimizer, 0)
        assert snapshots == [pack_state(model, optimizer, {})]


def test_a_snapshot_asked_for_while_a_round_can_be_computed_is_made_when_that_is_on_its_way():
    """Then the scheduler has stepped on every peer alike, and the training waits anyway."""
    model, optimizer = small_model()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    told: list[object] = []
    wanted = []

    def node(n: FakeNode) -> None:
        n.first_update()
        n.put(0, vector(0))
        n.send(
            control.ApplyCommand(0, 0, 0.0),
            control.StartRoundCommand(1, 1, False, 0, (), False, 1, 1),
            events.TakeSnapshot(),
        )
        while not told or type(told[-1]) is not control.Snapshot:
            told.append(n.next())
        told.append(os.pread(n.fds.pop(0), told[-1].nbytes, 0))
        n.applied(1, 1, vector(1))
        n.end(2)

    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, optimizer)
        for at in (0, 1):
            backward(model, at)
            if at == 1:
                wanted.append(pack_state(model, optimizer, {}))
            optimizer.step()
            scheduler.step()
    *kinds, snapshot, data = told
    assert [type(said) for said in kinds][-1] is control.Contribute
    assert snapshot.round_id == 1
    assert data == wanted[0]
    assert snapshot.parts == part_sizes(data)


def test_a_snapshot_comes_before_a_round_that_is_applied_behind_it():
    """A round that was committed without us, while we could compute it."""
    model, optimizer = small_model()
    data = []
    before = pack_state(model, optimizer, {})

    def node(n: FakeNode) -> None:
        n.prepared()
        n.put(0, vector(0))
        n.send(
            control.StartRoundCommand(0, 0, False, 0, (), False, 1, 1),
            events.TakeSnapshot(),
            control.ApplyCommand(0, 0, 0.0),
        )
        said = n.expect(control.Snapshot)
        assert said.round_id == 0
        data.append(os.pread(n.fds.pop(0), said.nbytes, 0))
        n.expect(control.AppliedReply)
        n.end(1)

    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, optimizer)
        assert pack_state(model, optimizer, {}) == before, "it is applied by the next that waits"
        swarm.session._loop.next_round()
    assert data == [before]
    assert pack_state(model, optimizer, {}) != before


SCHEDULERS = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "warmup": lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=8),
    "one_cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.5, total_steps=10),
    "milestones": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 4]),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_kept_schedulers_are_part_of_the_state(kind):
    schedule = SCHEDULERS[kind]
    theirs, their_optimizer = small_model(4)
    their_scheduler = schedule(their_optimizer)
    for _ in range(3):
        their_optimizer.step()
        their_scheduler.step()
    state = pack_state(theirs, their_optimizer, {"scheduler": their_scheduler.state_dict()})

    def node(n: FakeNode) -> None:
        n.prepared()
        n.restored(3, state)
        n.end(3)

    with prepared_swarm(node) as (swarm, model, optimizer):
        scheduler = schedule(optimizer)
        swarm.session.keep(scheduler=scheduler)
        for _ in range(4):
            assert optimizer.param_groups[0]["lr"] == their_optimizer.param_groups[0]["lr"]
            assert pack_state(model, optimizer, {}) == pack_state(theirs, their_optimizer, {})
            for s in (scheduler, their_scheduler):
                s.step()
        with pytest.raises(ConfigError, match="which has no state_dict"):
            swarm.session.keep(x=3)


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_scheduler_is_where_the_run_is_when_a_state_came_within_a_step(rounds):
    """The script steps its scheduler behind the step, which is of the round that was overtaken;
    or of the round that has followed."""
    theirs, their_optimizer = small_model(4)
    their_scheduler = SCHEDULERS["cosine"](their_optimizer)
    for _ in range(5):
        their_optimizer.step()
        their_scheduler.step()
    kept = {"scheduler": their_scheduler.state_dict()}
    state = pack_state(theirs, their_optimizer, kept)

    def node(n: FakeNode) -> None:
        n.first_update()
        n.restored(5, state)
        if rounds:
            n.applied(5, 0, vector(5))
        n.offered(5 + rounds)
        n.applied(5 + rounds, 0, vector(5))
        n.end(6 + rounds)

    with prepared_swarm(node) as (swarm, model, optimizer):
        scheduler = SCHEDULERS["cosine"](optimizer)
        swarm.session.keep(scheduler=scheduler)
        for at in range(2):
            step(model, optimizer, at)
            assert swarm.session.round == 5 + rounds + at
            scheduler.step()
        assert scheduler.last_epoch == swarm.session.round
        assert optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0]


@pytest.mark.parametrize("late", [1, 2, 5])
def test_a_scheduler_is_where_the_run_is_when_several_rounds_came_within_a_step(late):
    """A peer that hung gets the rounds that it missed in one ``optimizer.step()``."""

    def node(n: FakeNode) -> None:
        n.prepared()
        for first, rounds in ((0, 1), (1, late), (1 + late, 1)):
            n.offered(first)
            for at in range(first, first + rounds):
                n.applied(at, 0, vector(at))
        n.end(2 + late)

    with prepared_swarm(node) as (swarm, model, optimizer):
        scheduler = SCHEDULERS["cosine"](optimizer)
        swarm.session.keep(scheduler=scheduler)
        seen = []
        for step in swarm.session.steps(2 + late):
            seen.append(step)
            assert scheduler.last_epoch == step
            backward(model, step)
            optimizer.step()
            scheduler.step()
        assert seen == [0, 1, 1 + late]
        assert scheduler.last_epoch == swarm.session.step == 2 + late
        assert optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0]


# --- the node dies --------------------------------------------------------------------------------


def test_a_node_that_dies_mid_round_is_started_again_and_gets_the_same_update():
    model, optimizer = small_model()
    twin, twin_optimizer = small_model()
    first_update = []

    def dies(n: FakeNode) -> None:
        n.first_update()
        n.applied(0, 0, vector(0))
        n.offered(1, slot=1)
        first_update.append(n.arena.updates[1].copy())

    def lives(n: FakeNode) -> None:
        said = n.prepared()
        assert n.incarnation == 1
        assert said.round_id == 1
        assert said.state != b""
        again = n.offered(1, slot=3)
        assert (again.round_id, again.slot, again.samples) == (1, 3, 1)
        assert np.array_equal(n.arena.updates[3], first_update[0])
        n.applied(1, 0, vector(1))
        n.end(2)

    with FakeNodeSwarm(dies, lives) as swarm:
        swarm.session.prepare(model, optimizer)
        for seed in range(2):
            step(model, optimizer, seed)
            step_with(twin, twin_optimizer, vector(seed))
        assert same_bits(model, twin)
        assert swarm.session.round == 2


def test_another_node_gets_memory_that_it_can_write_to_though_the_former_was_shared():
    def dies(n: FakeNode) -> None:
        n.prepared()
        Lender(n.arena.fd, n.arena.memory)  # nobody can map it to write to it any more
        n.offered(0)

    def lives(n: FakeNode) -> None:
        n.first_update()
        n.applied(0, 0, vector(0))
        n.end(1)

    with prepared_swarm(dies, lives) as (swarm, model, optimizer):
        step(model, optimizer, 0)
        assert swarm.session.round == 1


def test_a_node_that_was_started_again_cannot_make_us_apply_a_round_twice():
    model, optimizer = small_model()
    twin, twin_optimizer = small_model()

    def dies(n: FakeNode) -> None:
        n.first_update()
        n.applied(0, 0, vector(0))

    def repeats(n: FakeNode) -> None:
        assert n.prepared().round_id == 1
        n.apply(0, 0, vector(0))
        assert n.expect(control.AppliedReply) == control.AppliedReply(0, 0)
        n.applied(1, 1, vector(1))
        n.end(2)

    with FakeNodeSwarm(dies, repeats) as swarm:
        swarm.session.prepare(model, optimizer)
        step(model, optimizer, 0)
        step_with(twin, twin_optimizer, vector(0))
        step_with(twin, twin_optimizer, vector(1))
        assert same_bits(model, twin)


@pytest.mark.parametrize("round_id", [0, 50])
def test_an_update_that_another_state_has_overtaken_is_not_sent_again(round_id):
    _, _, state = other_state()

    def dies(n: FakeNode) -> None:
        n.first_update()

    def restores(n: FakeNode) -> None:
        n.prepared()
        n.restored(round_id, state)
        n.end(round_id)

    with prepared_swarm(dies, restores) as (swarm, model, optimizer):
        step(model, optimizer, 0)
        assert swarm.session.round == round_id


def test_a_node_that_dies_while_the_trainer_computes_is_noticed_at_the_next_step():
    def dies(n: FakeNode) -> None:
        n.prepared()
        n.go(0)

    with prepared_swarm(dies, echo) as (swarm, model, optimizer):
        swarm.nodes[0].result()
        step(model, optimizer, 0)
        assert swarm.session.round == 1
        step(model, optimizer, 1)
        assert swarm.session.round == 2


def test_a_node_that_dies_before_the_model_is_known_is_no_problem_either():
    model, optimizer = small_model()
    with FakeNodeSwarm(lambda n: None, echo) as swarm:
        swarm.nodes[0].result()
        swarm.session.prepare(model, optimizer)
        assert swarm.session.round == 0


def test_a_node_that_keeps_dying_is_given_up_with_its_last_words():
    model, optimizer = small_model()

    def dies(n: FakeNode) -> None:
        n.prepared()

    with FakeNodeSwarm(dies, dies, dies, dies) as swarm:
        with pytest.raises(NodeLost, match="died 4 times: scripted end of incarnation 3"):
            swarm.session.prepare(model, optimizer)
        assert [node.incarnation for node in swarm.nodes] == [0, 1, 2, 3]


def test_the_shard_is_told_to_the_next_node_too():
    def dies(n: FakeNode) -> None:
        n.sharded()

    def lives(n: FakeNode) -> None:
        n.prepared()
        assert n.expect(events.DataConfigured) == events.DataConfigured(20, 5)
        n.end(0, ranges=[(0, 5)])

    with FakeNodeSwarm(dies, lives) as swarm:
        swarm.prepare()
        loader = swarm.session.shard(
            DataLoader(TensorDataset(torch.randn(20, 5)), batch_size=5, shuffle=True)
        )
        assert len(next(iter(loader))[0]) == 5


# --- data -----------------------------------------------------------------------------------------


def data(n: int = 20) -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(n, 5), torch.arange(n)), batch_size=5, shuffle=True)


def shard_node(epochs: int = 1, empty: tuple[int, ...] = ()):
    """Deals out 20 samples in 4 rounds an epoch; in round ``empty`` there are none for us."""

    def node(n: FakeNode) -> None:
        n.sharded()
        for round_id in range(4 * epochs):
            start = 5 * round_id
            n.go(
                round_id,
                slot=round_id % 4,
                ranges=[] if round_id in empty else [(start, start + 5)],
                epoch=round_id // 4,
            )
            said = n.expect(control.Contribute)
            assert said.round_id == round_id
            assert said.samples == (0 if round_id in empty else 5)
            n.applied(round_id, round_id % 4, vector(round_id))
        n.end(4 * epochs, ranges=[(20 * epochs, 20 * epochs + 5)], epoch=epochs)

    return node


def test_an_epoch_of_the_sharded_loader_is_what_the_rounds_say():
    model, optimizer = small_model()
    with FakeNodeSwarm(shard_node(epochs=2, empty=(1,))) as swarm:
        peer = swarm.session
        loader = peer.shard(data())
        peer.prepare(model, optimizer)
        seen = []
        for epoch in peer.epochs(2):
            for x, y in loader:
                optimizer.zero_grad()
                model(x).square().sum().backward()
                optimizer.step()
                seen += y.tolist()
            assert peer.round == 4 * (epoch + 1)
        # the batch of round 1 counts for nothing
        assert len(seen) == 40
        assert len({*seen[:5], *seen[10:20]}) == 15
        assert sorted(seen[20:]) == list(range(20))
        assert len(loader) == 4


@pytest.mark.parametrize(("workers", "each", "ahead"), [(0, None, 0), (2, 3, 6), (2, 30, 32)])
def test_the_node_is_asked_what_workers_may_fetch_beforehand(workers, each, ahead):
    asked = []

    def node(n: FakeNode) -> None:
        n.prepared()
        n.go(0)
        asked.append(n.expect(events.DataConfigured))
        n.halt()

    with FakeNodeSwarm(node) as swarm:
        swarm.prepare()
        data = TensorDataset(torch.randn(20, 5))
        swarm.session.shard(data, batch_size=5, num_workers=workers, prefetch_factor=each)
    assert asked == [events.DataConfigured(20, 5, ahead)]


def test_an_epoch_of_the_session_is_in_the_order_that_is_asked_for():
    model, optimizer = small_model()
    dataset = TensorDataset(torch.randn(20, 5), torch.arange(20) // 4)
    with FakeNodeSwarm(shard_node()) as swarm:
        peer = swarm.session
        loader = peer.shard(dataset, batch_size=5, order="stratified:labels")
        peer.prepare(model, optimizer)
        for x, y in loader:
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
            assert sorted(y.tolist()) == [0, 1, 2, 3, 4]


def test_a_stream_has_no_order():
    class Three(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with (
        FakeNodeSwarm(lambda n: None) as swarm,
        pytest.raises(ConfigError, match="an IterableDataset is read in its own order"),
    ):
        swarm.session.shard(Three(), batch_size=2, order="stratified:labels")


def test_a_stream_needs_no_samples_of_the_node():
    class Three(IterableDataset):
        def __iter__(self):
            return iter([(torch.ones(5), at) for at in range(3)])

    with prepared_swarm(echo) as (swarm, model, optimizer):
        loader = swarm.session.shard(Three(), batch_size=2)
        for epoch in swarm.session.epochs(2):
            for x, _ in loader:
                optimizer.zero_grad()
                model(x).square().sum().backward()
                optimizer.step()
            assert swarm.session.round == 2 * (epoch + 1)
        said = [
            message for message in swarm.nodes[0].heard if isinstance(message, control.Contribute)
        ]
        assert [message.samples for message in said] == [2, 1, 2, 1]


def test_a_round_that_passes_without_us_does_not_touch_the_users_gradients():
    with prepared_swarm(shard_node(empty=(1, 2))) as (swarm, model, optimizer):
        batches = iter(swarm.session.shard(data()))
        next(batches)
        step(model, optimizer, 0)
        kept = [p.grad for p in model.parameters()]
        values = [g.clone() for g in kept]
        for _ in range(3):  # rounds 1 and 2 go by
            next(batches)
        assert swarm.session.round == 3
        assert all(p.grad is g for p, g in zip(model.parameters(), kept, strict=True))
        assert all(torch.equal(g, v) for g, v in zip(kept, values, strict=True))
        step(model, optimizer, 0)
        assert next(batches, None) is None


def test_a_step_without_a_fresh_batch_is_refused():
    with prepared_swarm(shard_node()) as (swarm, model, optimizer):
        loader = swarm.session.shard(data())
        for _ in loader:
            step(model, optimizer, 0)
            with pytest.raises(ConfigError, match="without a fresh batch"):
                optimizer.step()


def test_a_peer_that_returned_runs_the_epochs_that_remain():
    _, _, state = other_state()

    def node(n: FakeNode) -> None:
        n.prepared()
        n.restored(12, state)
        n.go(12)
        n.expect(events.DataConfigured)
        for round_id, epoch in ((12, 3), (13, 4)):
            assert n.offered(round_id, ranges=[(0, 5)], epoch=epoch).round_id == round_id
            n.applied(round_id, 0, vector(0))
        n.end(14, ranges=[(0, 5)], epoch=5)

    with prepared_swarm(node) as (swarm, model, optimizer):
        loader = swarm.session.shard(data())
        seen = []
        for epoch in swarm.session.epochs(5):
            for _ in loader:
                step(model, optimizer, epoch)
                seen.append(epoch)
        assert seen == [3, 4]


def test_the_runs_rounds_end_the_loader_and_then_the_script():
    def node(n: FakeNode) -> None:
        n.sharded()
        for round_id in range(3):
            n.offered(round_id, ranges=[(0, 5)])
            n.applied(round_id, 0, vector(0))
        n.halt()

    with prepared_swarm(node, rounds=3) as (swarm, model, optimizer):
        steps = 0
        for _ in swarm.session.shard(data()):
            step(model, optimizer, steps)
            steps += 1
        assert steps == 3
        assert swarm.session.finished
        with pytest.raises(SystemExit) as ended:
            optimizer.step()
        assert ended.value.code == 0


def test_a_peer_that_catches_up_to_the_last_round_is_done():
    def node(n: FakeNode) -> None:
        n.sharded()
        n.offered(0, ranges=[(0, 5)])
        for round_id in range(3):
            n.applied(round_id, round_id, vector(round_id))
        n.end(3, ranges=[(0, 5)])

    with prepared_swarm(node, rounds=3) as (swarm, model, optimizer):
        steps = 0
        for _ in swarm.session.shard(data()):
            step(model, optimizer, steps)
            steps += 1
        assert steps == 1
        assert swarm.session.round == 3


def test_sharding_twice_or_reading_before_prepare_is_refused():
    with FakeNodeSwarm(lambda n: n.halt()) as swarm:
        loader = swarm.session.shard(data())
        with pytest.raises(ConfigError, match="before prepare"):
            next(iter(loader))
        with pytest.raises(ConfigError, match="shard was called twice"):
            swarm.session.shard(data())


def test_a_peer_with_flipped_labels_reads_them_wrong():
    with FakeNodeSwarm(shard_node(), faults=("label_flip:0",)) as swarm:
        model, optimizer = swarm.prepare()
        honest = torch.arange(20)
        seen = []
        for x, y in swarm.session.shard(data()):
            del x
            seen += y.tolist()
            step(model, optimizer, 0)
        assert sorted(seen) == honest.tolist()  # 19 - y of all y
        swarm_free = FakeNodeSwarm(shard_node())
        with swarm_free:
            other, other_optimizer = small_model()
            swarm_free.session.prepare(other, other_optimizer)
            truth = []
            for _, y in swarm_free.session.shard(data()):
                truth += y.tolist()
                step(other, other_optimizer, 0)
        assert [19 - y for y in seen] == truth


def test_a_slow_peer_takes_its_time_before_it_contributes(monkeypatch):
    from gossip.inject import faulty_trainer as module

    naps = []
    monkeypatch.setattr(module.time, "sleep", naps.append)
    with prepared_swarm(echo, faults=("slow:0*4",)) as (swarm, model, optimizer):
        now = module.time.monotonic()
        swarm.session._rounds.computing_since = now - 10
        step(model, optimizer, 0)
    assert len(naps) == 1
    assert 30 <= naps[0] < 40


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (2, ConfigError),
        (4, SwarmError),
        (5, SwarmError),
        (6, Refused),
        (0, SystemExit),
        (143, SystemExit),
    ],
)
def test_a_halt_of_the_node_is_raised_as_what_it_means(code, kind):
    def node(n: FakeNode) -> None:
        n.first_update()
        n.send(events.Halt("the reason", code))

    with prepared_swarm(node) as (_, model, optimizer):
        backward(model, 0)
        with pytest.raises(kind) as raised:
            optimizer.step()
        if kind is not SystemExit:
            assert str(raised.value) == "the reason"
            assert raised.value.exit_code == code
        else:
            assert raised.value.code == code


def test_a_halt_after_the_last_round_does_not_spoil_the_step_that_was_done():
    def node(n: FakeNode) -> None:
        n.first_update()
        n.applied(0, 0, vector(0))
        n.send(events.Halt("too few peers are left", 5))

    with prepared_swarm(node) as (swarm, model, optimizer):
        step(model, optimizer, 0)
        assert swarm.session.round == 1
        with pytest.raises(SwarmError, match="too few"):
            optimizer.step()


def test_closing_serves_a_last_snapshot_and_takes_no_round_any_more():
    snapshots = []

    def node(n: FakeNode) -> None:
        n.prepared()
        n.go(0)
        assert n.expect(control.Close).reason == "finished"
        n.apply(0, 0, vector(0))
        n.send(events.TakeSnapshot())
        said = n.expect(control.Snapshot)
        snapshots.append(os.pread(n.fds.pop(0), said.nbytes, 0))
        n.send(events.Halt("finished", 0))

    with prepared_swarm(node) as (swarm, model, optimizer):
        before = pack_state(model, optimizer, {})
        swarm.session.close()
        assert snapshots == [before]
        assert pack_state(model, optimizer, {}) == before
        swarm.session.close()
        with pytest.raises(ConfigError, match="has left the swarm"):
            optimizer.step()


def test_the_context_manager_says_how_it_ended(tmp_path):
    def node(n: FakeNode) -> None:
        reasons.append(n.halt().reason)

    reasons: list[str] = []
    with FakeNodeSwarm(node) as swarm, swarm.session:
        assert swarm.session.id == 0
    with (
        FakeNodeSwarm(node, run_dir_path=tmp_path) as swarm,
        pytest.raises(KeyError),
        swarm.session,
    ):
        raise KeyError("of the user")
    assert reasons == ["finished", "raised"]
    error = json.loads((tmp_path / "peer-0" / "error.json").read_text())
    assert error["type"] == "KeyError"
    assert error["frames"][-1]["code"] == 'raise KeyError("of the user")'
    assert error["frames"][-1]["file"] == __file__


def test_what_cannot_be_logged_is_named():
    with FakeNodeSwarm(lambda n: n.halt()) as swarm:
        for bad in (torch.zeros(2), [1], "x" * 201, None):
            with pytest.raises(ConfigError, match="cannot log thing"):
                swarm.session.log(thing=bad)
        swarm.session.log(thing=np.float32(1.5), count=np.int64(3), ok=True)
    assert json.loads(swarm.nodes[0].logs[0]) == {"round": 0, "thing": 1.5, "count": 3, "ok": 1}


def test_a_session_leaks_no_descriptors():
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    def life() -> None:
        model, optimizer = small_model()
        with FakeNodeSwarm(echo) as swarm:
            swarm.session.prepare(model, optimizer)
            step(model, optimizer, 0)
        for node in swarm.nodes:
            node.arena.close()

    life()
    before = count()
    for _ in range(5):
        life()
    assert count() <= before


def test_a_forked_child_lets_go_of_the_channel_and_takes_no_part():
    with prepared_swarm(echo) as (swarm, model, optimizer):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                optimizer.step()
            except ConfigError as error:
                os.write(write, str(error).encode())
            swarm.session.close()
            gone = swarm.session._node.link._channel.fileno() == -1
            os.write(write, b"|gone" if gone else b"|held")
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        assert os.read(read, 1000) == b"this is a forked child of the peer|gone"
        os.close(read)
        step(model, optimizer, 0)
        assert swarm.session.round == 1
