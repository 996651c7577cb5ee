"""The sender at work in a trainer: what leaves is what it makes of the gradients, once a round,
whatever the node does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from trainer_fakes import (
    FakeNode,
    FakeNodeSwarm,
    backward,
    echo,
    prepared_swarm,
    same_bits,
    small_model,
    step,
)

from gossip.aggregators import senders
from gossip.config import RunConfig
from gossip.training.layout import PRESENT


def gradient_of(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]).clone()  # type: ignore[union-attr]


def test_a_swarm_of_one_trains_on_what_the_sender_makes_of_its_gradients() -> None:
    model, optimizer = small_model()
    twin, twin_optimizer = small_model()
    sender, memory = senders.load("momentum:beta=0.8+clip:0.5"), None
    with FakeNodeSwarm(echo, sender="momentum:beta=0.8+clip:0.5") as swarm:
        swarm.session.prepare(model, optimizer)
        for seed in range(6):
            step(model, optimizer, seed)
            backward(twin, seed)
            sent, memory = sender(gradient_of(twin), memory)
            pieces = sent.split([parameter.numel() for parameter in twin.parameters()])
            for parameter, piece in zip(twin.parameters(), pieces, strict=True):
                parameter.grad = piece.view_as(parameter).clone()
            twin_optimizer.step()
            assert same_bits(model, twin)


def test_a_node_that_dies_in_a_round_is_offered_the_same_update_again_and_the_memory_moves_once():
    seen = []

    def first(n: FakeNode) -> None:
        n.prepared()
        n.offered(0, slot=1)
        seen.append(n.arena.updates[1].copy())  # type: ignore[union-attr]

    def second(n: FakeNode) -> None:
        n.prepared()
        n.offered(0, slot=2)
        seen.append(n.arena.updates[2].copy())  # type: ignore[union-attr]
        n.applied(0, 1, seen[1])
        n.end(1)

    with prepared_swarm(first, second, sender="momentum:0.9") as (swarm, model, optimizer):
        backward(model, 3)
        raw = gradient_of(model)
        optimizer.step()
        assert np.array_equal(*seen)
        assert np.allclose(seen[0][: len(raw)], 0.1 * raw.numpy(), rtol=1e-6)
        assert (seen[0][len(raw) :] == PRESENT).all(), "the sender is given nothing but gradients"
        (memory,) = swarm.session._run.model.sender_memory  # type: ignore[misc]
        assert np.array_equal(memory.numpy(), seen[0][: len(raw)])  # type: ignore[union-attr]


def test_a_sender_that_nobody_knows_is_refused_with_the_settings() -> None:
    with pytest.raises(ValueError, match="Did you mean 'momentum'"):
        RunConfig(sender="momentun")
