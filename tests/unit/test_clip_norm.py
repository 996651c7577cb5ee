"""Clipping of the aggregate: ``prepare(..., clip_norm=)``."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from trainer_fakes import (
    FakeNode,
    FakeNodeSwarm,
    backward,
    echo,
    flat_parameters,
    same_bits,
    small_model,
    step,
)

from gossip.errors import ConfigError
from gossip.ipc import messages as control
from gossip.training.local_model import LocalModel

CLIP = 0.5


def gradients(model: nn.Module, seed: int) -> list[torch.Tensor]:
    backward(model, seed)
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def averaging(twin: nn.Module, rounds: int, sent: list[tuple[float, ...]]) -> Callable[..., None]:
    """A node whose results are the mean of three peers: this one, and two with batches of ``twin``,
    which the caller steps as DDP would."""

    def node(n: FakeNode) -> None:
        n.prepared()
        n.go(0)
        for round_id in range(rounds):
            said = n.expect(control.Contribute)
            sent.append(said.rates)
            mean = n.arena.updates[said.slot][:66].copy()
            for other in (1, 2):
                found = gradients(twin, 10 * round_id + other)
                mean += torch.cat([g.reshape(-1) for g in found]).numpy()
            n.applied(round_id, round_id % 4, mean / np.float32(3))
            n.go(round_id + 1)
        n.halt()

    return node


@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_the_mean_is_clipped_as_after_ddp(scale: float) -> None:
    """Equal to plain torch to 1e-6: mean of the gradients, ``clip_grad_norm_``, SGD. With a small
    scale the mean is never longer than the norm."""
    (model, optimizer), (twin, plain) = small_model(), small_model()
    others, sent = copy.deepcopy(twin), list[tuple[float, ...]]()
    norm_max = CLIP / scale
    with FakeNodeSwarm(averaging(others, 4, sent)) as swarm:
        swarm.session.prepare(model, optimizer, clip_norm=norm_max)
        for at in range(4):
            others.load_state_dict(twin.state_dict())
            means = zip(*[gradients(twin, 10 * at + peer) for peer in range(3)], strict=True)
            for parameter, found in zip(twin.parameters(), means, strict=True):
                parameter.grad = sum(found) / 3  # type: ignore[assignment]
            norm = nn.utils.clip_grad_norm_(twin.parameters(), norm_max)
            assert (norm > norm_max) == (scale == 1.0), "the test shows both"
            plain.step()
            step(model, optimizer, 10 * at)
            kept = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
            assert kept.norm().item() <= norm_max * (1 + 1e-6)
            difference = (flat_parameters(model) - flat_parameters(twin)).abs().max().item()
            assert difference < 1e-6
    assert {rates[-1] for rates in sent} == {norm_max}, "it is agreed like a learning rate"


def test_all_peers_clip_to_the_norm_that_they_agree_on() -> None:
    """Also in a round without this peer. The commit names the norm after the optimizer's own
    settings."""
    model, optimizer = small_model()
    optimizer.param_groups[0].update(lr=1.0, momentum=0.0)
    before = flat_parameters(model)

    def node(n: FakeNode) -> None:
        n.prepared()
        n.go(0)
        own = n.expect(control.Contribute).rates
        n.put(0, np.full(66, 10.0, np.float32))
        n.send(control.ApplyCommand(0, 0, 0.0, rates=(*own[:-1], 0.125)))
        n.expect(control.AppliedReply)
        n.put(1, np.full(66, 10.0, np.float32))
        n.send(control.ApplyCommand(1, 1, 0.0, rates=own))
        n.expect(control.AppliedReply)
        n.end(2)

    with FakeNodeSwarm(node) as swarm:
        swarm.session.prepare(model, optimizer, clip_norm=0.5)
        step(model, optimizer, 0)
        while swarm.session.round < 2:
            swarm.session._node.serve(lambda: swarm.session.round == 2)
    assert (flat_parameters(model) - before).norm().item() == pytest.approx(0.625, rel=1e-5)
    assert "clip_norm" not in optimizer.param_groups[0]


def test_a_peer_alone_clips_its_own_gradient() -> None:
    (model, optimizer), (twin, plain) = small_model(), small_model()
    with FakeNodeSwarm(echo, name="alone") as swarm:
        swarm.session.prepare(model, optimizer, clip_norm=CLIP)
        for at in range(3):
            step(model, optimizer, at)
            backward(twin, at)
            nn.utils.clip_grad_norm_(twin.parameters(), CLIP)
            plain.step()
    assert torch.allclose(flat_parameters(model), flat_parameters(twin), rtol=0, atol=1e-6)


def test_the_factor_is_exact_in_float32_with_any_number_of_threads() -> None:
    """A float32 sum of so many squares is wrong in the fourth digit."""
    numbers = torch.randn(300_001, generator=torch.Generator().manual_seed(0))
    clip = {"clip_norm": 1.0}
    model: Any = SimpleNamespace(trained=SimpleNamespace(clip=clip), _settings=[clip])
    norm = math.sqrt(math.fsum(x * x for x in numbers.tolist()))
    before = torch.get_num_threads()
    try:
        for threads in (1, 4):
            torch.set_num_threads(threads)
            factor = LocalModel._clip_factor(model, numbers, ())
            assert factor == np.float32(1 / (norm + 1e-6))
    finally:
        torch.set_num_threads(before)


def test_without_it_nothing_is_clipped() -> None:
    (model, optimizer), (twin, plain) = small_model(), small_model()
    with FakeNodeSwarm(echo) as swarm:
        swarm.session.prepare(model, optimizer)
        step(model, optimizer, 0)
        step(twin, plain, 0)
        assert same_bits(model, twin)


@pytest.mark.parametrize("norm", [0, -1.0, math.inf, math.nan, "1", True])
def test_a_norm_that_clips_nothing_or_everything_is_refused(norm: object) -> None:
    model, optimizer = small_model()
    with FakeNodeSwarm(echo) as swarm:
        with pytest.raises(ConfigError, match="clip_norm=") as refused:
            swarm.session.prepare(model, optimizer, clip_norm=norm)  # type: ignore[arg-type]
        assert refused.value.hint
        swarm.session.prepare(model, optimizer)


def test_local_steps_are_refused_by_name() -> None:
    model, optimizer = small_model()
    with FakeNodeSwarm(echo, local_steps=2) as swarm:
        with pytest.raises(ConfigError, match="clip_norm with local_steps"):
            swarm.session.prepare(model, optimizer, clip_norm=1.0)
        swarm.session.prepare(model, optimizer)
