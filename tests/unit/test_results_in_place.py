"""A long result is the optimizer's gradient where it lies, and what a script does to ``.grad``
changes it for nobody else."""

from __future__ import annotations

import copy
from types import MethodType
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from trainer_fakes import (
    FakeNode,
    FakeNodeSwarm,
    apply_alone,
    backward,
    same_bits,
    small_model,
    step,
)

from gossip.ipc import arena, messages as control
from gossip.training import layout
from gossip.training.optimizer import StepCoordinator, only_reads_gradients
from gossip.transport.lending import Lender

ELEMENTS = 5 * 7 + 7 + 7 * 3 + 3

READERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {}),
    "SGD, all of it": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "SGD, maximized": (torch.optim.SGD, {"maximize": True, "weight_decay": 0.1}),
    "SGD, dampened": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1}),
    "SGD, fused": (torch.optim.SGD, {"fused": True, "momentum": 0.9, "weight_decay": 0.1}),
    "Adam": (torch.optim.Adam, {"weight_decay": 0.1}),
    "Adam, all of it": (torch.optim.Adam, {"weight_decay": 0.1, "amsgrad": True, "maximize": True}),
    "Adam, fused": (torch.optim.Adam, {"fused": True, "weight_decay": 0.1}),
    "AdamW": (torch.optim.AdamW, {}),
    "AdamW, fused": (torch.optim.AdamW, {"fused": True, "amsgrad": True}),
}


@pytest.fixture(autouse=True)
def _all_are_long(monkeypatch):
    monkeypatch.setattr(arena, "LENT_ELEMENTS", 1)


@pytest.fixture
def pointed(monkeypatch) -> list[bool]:
    """One entry for each time that gradients are where a result lies."""
    seen: list[bool] = []
    point = layout.Layout.point_gradients

    def noted(self: layout.Layout, flat: torch.Tensor) -> None:
        seen.append(True)
        point(self, flat)

    monkeypatch.setattr(layout.Layout, "point_gradients", noted)
    return seen


def results(rounds: int) -> list[np.ndarray]:
    draw = np.random.default_rng(4)
    return [draw.standard_normal(ELEMENTS).astype(np.float32) for _ in range(rounds)]


def giving(vectors: list[np.ndarray], left: list[np.ndarray]):
    """A node that lends its arena, and decides ``vectors`` in two slots in turn. ``left``: what is
    in the slot once each is applied."""

    def node(n: FakeNode) -> None:
        n.prepared()
        Lender(n.arena.fd, n.arena.memory)
        for round_id, vector in enumerate(vectors):
            n.offered(round_id)
            slot = 2 + round_id % 2  # a slot is free when the next result was applied
            n.applied(round_id, slot, vector)
            left.append(n.arena.results[slot][:ELEMENTS].copy())
        n.end(len(vectors))

    return node


def gradients(model: torch.nn.Module) -> np.ndarray:
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy()


def twins(kind: type[torch.optim.Optimizer], options: dict[str, Any]):
    model, _ = small_model()
    twin = copy.deepcopy(model)
    return (
        (model, kind(model.parameters(), lr=0.1, **options)),  # type: ignore[call-arg]
        (twin, kind(twin.parameters(), lr=0.1, **options)),  # type: ignore[call-arg]
    )


@pytest.mark.parametrize("name", READERS)
def test_a_step_reads_the_result_where_it_lies_and_leaves_it_as_it_is(name, pointed):
    (model, optimizer), (twin, twin_optimizer) = twins(*READERS[name])
    vectors, left = results(4), []
    with FakeNodeSwarm(giving(vectors, left), peers=2) as swarm:
        swarm.session.prepare(model, optimizer)
        for seed, vector in enumerate(vectors):
            step(model, optimizer, seed)
            apply_alone(twin, twin_optimizer, vector)
            assert same_bits(model, twin)
            assert np.array_equal(gradients(model), vector)
    assert len(pointed) == 2 * len(vectors)
    assert [each.tobytes() for each in left] == [each.tobytes() for each in vectors]


def test_only_a_result_that_is_clipped_is_copied(pointed):
    (model, optimizer), (twin, twin_optimizer) = twins(torch.optim.SGD, {})
    vectors, left = [scale * each for scale, each in zip((1, 9, 1, 9), results(4), strict=True)], []
    longest = max(float(np.linalg.norm(vector)) for vector in vectors[::2])
    with FakeNodeSwarm(giving(vectors, left), peers=2) as swarm:
        swarm.session.prepare(model, optimizer, clip_norm=longest + 1)
        for seed, vector in enumerate(vectors):
            step(model, optimizer, seed)
            norm = float(np.linalg.norm(vector.astype(np.float64)))
            apply_alone(
                twin, twin_optimizer, vector * np.float32(min(1, (longest + 1) / (norm + 1e-6)))
            )
            assert same_bits(model, twin)
    assert len(pointed) == 2 * 2, "of the results that are short enough"
    assert [each.tobytes() for each in left] == [each.tobytes() for each in vectors]


def test_what_a_script_writes_to_its_gradients_is_seen_by_nobody_and_gone_with_the_next_result():
    (model, optimizer), (twin, twin_optimizer) = twins(torch.optim.SGD, {})
    vectors, left = results(3), []
    with FakeNodeSwarm(giving(vectors, left), peers=2) as swarm:
        swarm.session.prepare(model, optimizer)
        results_in = swarm.session._run.model.arena.results
        for seed, vector in enumerate(vectors):
            step(model, optimizer, seed)
            apply_alone(twin, twin_optimizer, vector)
            assert same_bits(model, twin)
            assert np.array_equal(gradients(model), vector)
            for parameter in model.parameters():
                parameter.grad.fill_(7.0)
            assert np.array_equal(results_in[2 + seed % 2][:ELEMENTS], vector)
            assert (gradients(model) == 7.0).all()


def test_an_optimizer_that_writes_to_its_gradients_has_a_copy(pointed):
    options = {"foreach": True, "momentum": 0.9, "nesterov": True}
    (model, optimizer), (twin, twin_optimizer) = twins(torch.optim.SGD, options)
    vectors, left = results(3), []
    with FakeNodeSwarm(giving(vectors, left), peers=2) as swarm:
        swarm.session.prepare(model, optimizer)
        for seed, vector in enumerate(vectors):
            step(model, optimizer, seed)
            apply_alone(twin, twin_optimizer, vector)
            assert same_bits(model, twin)
    assert pointed == []
    assert [each.tobytes() for each in left] == [each.tobytes() for each in vectors]


class Own(torch.optim.SGD):
    """Whose step nobody knows."""


def test_only_what_is_known_to_read_is_let_read():
    model, _ = small_model()

    def sgd(kind: type[torch.optim.SGD] = torch.optim.SGD, **options: Any) -> torch.optim.SGD:
        return kind(model.parameters(), lr=0.1, **options)

    assert only_reads_gradients(sgd())
    assert not only_reads_gradients(sgd(Own))
    assert not only_reads_gradients(sgd(foreach=True))
    assert not only_reads_gradients(sgd(differentiable=True))
    assert not only_reads_gradients(torch.optim.RMSprop(model.parameters()))
    for register in ("register_step_pre_hook", "register_step_post_hook"):
        hooked = sgd()
        handle = getattr(hooked, register)(lambda *_: None)
        assert not only_reads_gradients(hooked)
        handle.remove()
        assert only_reads_gradients(hooked)
    everywhere = register_optimizer_step_pre_hook(lambda *_: None)
    assert not only_reads_gradients(sgd())
    everywhere.remove()


@pytest.mark.parametrize("scheduled", ["before", "after", "never"])
@pytest.mark.parametrize("patched", [False, True])
def test_a_step_that_the_script_has_replaced_is_not_known_to_read(scheduled: str, patched: bool):
    model, optimizer = small_model()
    if patched:
        own_step = optimizer.step

        def step(self: torch.optim.Optimizer, closure: Any = None) -> None:
            for parameter in model.parameters():
                parameter.grad.add_(torch.randn_like(parameter))
            own_step(closure)

        optimizer.step = MethodType(step, optimizer)
    if scheduled == "before":
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    StepCoordinator([optimizer], lambda *_: None, together=False)
    if scheduled == "after":
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert only_reads_gradients(optimizer) is not patched


def test_a_parameter_in_another_order_of_memory_has_a_copy(pointed):
    torch.manual_seed(0)
    model = torch.nn.Conv2d(3, 4, 3, bias=False).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    vector = np.arange(108, dtype=np.float32)

    def node(n: FakeNode) -> None:
        n.first_update()
        n.applied(0, 1, vector)
        n.end(1)

    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, optimizer)
        model(torch.randn(1, 3, 4, 4)).sum().backward()
        optimizer.step()
    expected = before - 0.1 * torch.from_numpy(vector).view(4, 3, 3, 3)
    assert torch.allclose(model.weight.detach(), expected)
    assert pointed == []


def test_a_parameter_without_a_gradient_anywhere_has_none(pointed):
    model, _ = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kept = model[2].bias.detach().clone()

    def node(n: FakeNode) -> None:
        n.first_update()
        n.put(1, np.ones(ELEMENTS, np.float32))
        n.arena.results[1][-1] = 0.0
        n.send(control.ApplyCommand(0, 1, 0.0))
        n.expect(control.AppliedReply)
        n.end(1)

    with FakeNodeSwarm(node, peers=2) as swarm:
        swarm.session.prepare(model, optimizer)
        step(model, optimizer, 0)
    assert pointed
    assert model[2].bias.grad is None
    assert torch.equal(model[2].bias, kept)
    assert (model[2].weight.grad == 1.0).all()


def hold_nothing(model: torch.nn.Module) -> list[Any]:
    return []


def hold_tensors(model: torch.nn.Module) -> list[Any]:
    return [parameter.grad for parameter in model.parameters()]


def hold_one_alias(model: torch.nn.Module) -> list[Any]:
    return [next(model.parameters()).grad.detach()]


def hold_flat_buffer(model: torch.nn.Module) -> list[Any]:
    parameters = list(model.parameters())
    flat = torch.cat([p.grad.reshape(-1) for p in parameters])
    for parameter, piece in zip(
        parameters, flat.split([p.numel() for p in parameters]), strict=True
    ):
        parameter.grad = piece.view_as(parameter)
    return [flat]


@pytest.mark.parametrize(
    ("hold", "lends"),
    [
        (hold_nothing, True),
        (hold_tensors, False),
        (hold_one_alias, False),
        (hold_flat_buffer, False),
    ],
)
def test_a_result_is_lent_only_in_place_of_gradients_not_held(hold, lends, pointed):
    (model, optimizer), (twin, twin_optimizer) = twins(torch.optim.SGD, {})
    vectors, left = results(3), []
    with FakeNodeSwarm(giving(vectors, left), peers=2) as swarm:
        swarm.session.prepare(model, optimizer)
        for seed, vector in enumerate(vectors):
            backward(model, seed)
            held = hold(model)
            optimizer.step()
            apply_alone(twin, twin_optimizer, vector)
            assert same_bits(model, twin)
            for tensor in held:
                assert np.array_equal(tensor.reshape(-1).numpy(), vector[: tensor.numel()])
                vector = vector[tensor.numel() :]
    assert bool(pointed) == lends


def test_a_lent_gradient_that_the_script_has_kept_stays_as_it_was():
    (model, optimizer), _ = twins(torch.optim.SGD, {})
    vectors, kept = results(4), []
    with FakeNodeSwarm(giving(vectors, []), peers=2) as swarm:
        swarm.session.prepare(model, optimizer)
        for seed in range(4):
            step(model, optimizer, seed)
            kept.append([parameter.grad for parameter in model.parameters()])
        found = [torch.cat([g.reshape(-1) for g in each]).numpy() for each in kept]
    assert [each.tobytes() for each in found] == [each.tobytes() for each in vectors]


def test_a_peer_without_others_lends_nothing(pointed):
    (model, optimizer), _ = twins(torch.optim.SGD, {})
    with FakeNodeSwarm(giving(results(2), [])) as swarm:
        swarm.session.prepare(model, optimizer)
        for seed in range(2):
            step(model, optimizer, seed)
    assert pointed == []


@pytest.mark.parametrize("alias", [torch.Tensor.detach, lambda gradient: gradient.view(-1)])
def test_an_alias_of_a_lent_gradient_keeps_its_values(alias):
    (model, optimizer), _ = twins(torch.optim.SGD, {})
    vectors = results(6)
    with FakeNodeSwarm(giving(vectors, []), peers=2) as swarm:
        swarm.session.prepare(model, optimizer)
        step(model, optimizer, 0)
        first = next(model.parameters()).grad
        kept, before = alias(first), first.clone().reshape(-1)
        for seed in range(1, 6):
            step(model, optimizer, seed)
            assert torch.equal(kept.reshape(-1), before)
