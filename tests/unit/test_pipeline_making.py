"""Layers that are given as functions: a process holds those of its own stage alone."""

from __future__ import annotations

import functools
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pipeline_models import LETTERS, WIDTH, char_batch, char_layers, char_loss, char_makers
from test_pipeline_trainer import nothing, plan_for, sgd
from torch import Tensor, nn
from trainer_fakes import FakeNode, FakeNodeSwarm, echo

from gossip.errors import ConfigError, UnsupportedModel
from gossip_pipelines.planning import (
    LayerMaker,
    layers_of,
    make_layer,
    measure_layers,
    walk_without_data,
)

SAMPLES = char_batch(0, 1)[0]


class Recorded:
    """Makes what ``maker`` makes, and knows which parameters with memory are alive."""

    def __init__(self, maker: Callable[[], nn.Module]) -> None:
        self.maker, self.made = maker, 0
        self.alive: weakref.WeakSet[nn.Parameter] = weakref.WeakSet()

    def __call__(self) -> nn.Module:
        layer = self.maker()
        if not next(layer.parameters()).is_meta:
            self.made += 1
            self.alive.add(next(layer.parameters()))
        return layer


def joins(node: FakeNode) -> None:
    node.prepared()
    node.go(0)
    node.halt()


def stage_of(peer: int, cuts: tuple[int, ...], layers: list[Any]) -> dict[str, Tensor]:
    """The parameters that a peer of a plan begins with. Its layers are given as functions."""
    plan = plan_for(char_layers(), cuts, 3)
    with FakeNodeSwarm(joins, peers=3, peer=peer, pipeline=plan) as swarm:
        pipe = swarm.session.pipeline(layers, SAMPLES, loss=char_loss, optimizer=sgd)
        return dict(pipe.model.state_dict())


def test_a_peer_makes_the_layers_of_its_stage_alone() -> None:
    layers = [Recorded(maker) for maker in char_makers()]  # type: ignore[arg-type]
    assert {name.partition(".")[0] for name in stage_of(1, (2, 4), layers)} == {"2", "3"}
    assert [layer.made for layer in layers] == [0, 0, 1, 1, 0, 0]


def test_a_model_begins_alike_wherever_it_is_cut() -> None:
    whole = {
        f"{at}.{name}": tensor
        for at, layer in enumerate(char_makers())
        for name, tensor in make_layer(layer, at, 0).state_dict().items()
    }
    assert not torch.equal(whole["1.out.weight"], whole["2.out.weight"])
    for cuts in ((2, 4), (1, 3)):
        found: dict[str, Tensor] = {}
        for peer in range(3):
            torch.manual_seed(peer)  # what was drawn before counts for nothing
            found |= stage_of(peer, cuts, char_makers())
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[name], whole[name]) for name in whole)
    with FakeNodeSwarm(echo) as swarm:
        pipe = swarm.session.pipeline(char_makers(), SAMPLES, loss=char_loss, optimizer=sgd)
        alone = pipe.model.state_dict()
    assert all(torch.equal(alone[name], whole[name]) for name in whole)


def test_making_a_layer_leaves_the_generators_as_they_were() -> None:
    def draw() -> list[float]:
        return [random.random(), float(np.random.random()), torch.rand(()).item()]

    seen: list[list[float]] = []

    def layer() -> nn.Module:
        seen.append(draw())
        return nn.ReLU()

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draw(), draw()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    first = draw()
    make_layer(layer, 3, 7)
    assert (first, draw()) == expected
    make_layer(layer, 3, 7)
    make_layer(layer, 4, 7)
    make_layer(layer, 3, 8)
    assert seen[0] == seen[1]
    for one, other in ((0, 2), (0, 3), (2, 3)):
        assert all(a != b for a, b in zip(seen[one], seen[other], strict=True))


def reads_numbers() -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH)
    assert layer.weight.sum().item() != 0
    return layer


def test_a_function_that_makes_no_layer_of_its_own_is_refused_by_name() -> None:
    built = nn.Linear(2, 2)
    sizes = iter(range(2, 9))
    tied = functools.cache(lambda: nn.Linear(2, 2))
    for layers, said in [
        ([nn.ReLU, lambda: 3], "layer 1: its function makes int, not a module"),
        ([lambda: built], "layer 0: its function does not make the parameter weight, or makes it"),
        ([nn.ReLU, reads_numbers], "layer 1: its function fails on torch's meta device: Runtime"),
        ([tied, nn.ReLU, tied], "here: layers 0 and 2 share the parameter weight"),
        ([nn.ReLU, 3], "here: layer 1 is int, not a module or a function"),
    ]:
        with pytest.raises(ConfigError, match=said):
            layers_of((layers, torch.ones(1, 2)), "here")
    other = [*char_makers()[:-1], lambda: nn.Linear(next(sizes), LETTERS)]
    again = "layer 5: its function makes another layer each time"
    with FakeNodeSwarm(nothing) as swarm, pytest.raises(ConfigError, match=again):
        swarm.session.pipeline(other, SAMPLES, loss=char_loss, optimizer=sgd)


def test_statistics_of_batches_are_refused_in_layers_given_as_functions() -> None:
    layers = [lambda: nn.Linear(2, 2), lambda: nn.BatchNorm1d(2)]
    refused = pytest.raises(UnsupportedModel, match="layer 1 is a BatchNorm1d")
    with FakeNodeSwarm(nothing) as swarm, refused:
        swarm.session.pipeline(layers, torch.ones(2, 2), loss=char_loss, optimizer=sgd)


def test_a_buffer_of_a_layer_given_as_a_function_is_made_with_it() -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("place", torch.arange(3.0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight + self.place

    with FakeNodeSwarm(echo) as swarm:
        pipe = swarm.session.pipeline(
            [Placed], torch.ones(2, 3), loss=lambda out, y: (out - y).mean(), optimizer=sgd
        )
        assert pipe.step(torch.ones(2, 3), torch.zeros(2, 3)) == pytest.approx(2.0)


def test_one_layer_is_there_at_a_time_while_functions_are_profiled() -> None:
    def squashed() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())  # keeps what it hands on

    makers = [*char_makers()[:-1], squashed, squashed, char_makers()[-1]]
    layers = [Recorded(maker) for maker in makers]  # type: ignore[arg-type]
    alive: list[int] = []

    def counted(layer: Recorded) -> LayerMaker:
        def make() -> nn.Module:
            made = layer()
            alive.append(sum(len(each.alive) for each in layers))
            return made

        return make

    functions = [counted(layer) for layer in layers]
    given, samples = layers_of((functions, SAMPLES), "here")
    times = measure_layers(given, samples, (1, 3), 1)
    assert max(alive) == 1
    built = walk_without_data(char_layers(), SAMPLES)
    expected = [each.signature for each in built]
    assert [each.signature for each in (*times.layers[:5], times.layers[-1])] == expected
    assert times.timed == 8
