"""``peer.search_start`` of a script that was started alone: what it does to the model, and what it
refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

import gossip
from gossip.errors import ConfigError
from gossip_pipelines.starts import StartRecipe, StartSearch, build

STARTS = (StartRecipe(gain=1e-4), StartRecipe("orthogonal"), StartRecipe(gain=40.0))
SEARCH = StartSearch(STARTS, steps=60, held_out=40)


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def data() -> torch.utils.data.TensorDataset:
    inputs = torch.randn(240, 6, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.TensorDataset(inputs, inputs[:, :3].argmax(1))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def sgd(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.fixture
def peer() -> Iterator[gossip.Session]:
    with gossip.init(seed=3) as session:
        yield session


def test_the_model_begins_with_the_winner_and_nothing_else_is_changed(peer: Any) -> None:
    model = Net()
    model, optimizer = peer.prepare(model, sgd(model.parameters()))
    loader = peer.shard(data(), batch_size=16)
    drawn = torch.get_rng_state()
    found = peer.search_start(Net, loss=loss, optimizer=sgd, search=SEARCH)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert found.recipe == STARTS[1]
    assert sorted(found.rungs[0].losses) == [0, 1, 2]
    assert sorted(found.rungs[-1].losses) == [0, 1]
    expected = build(Net, STARTS[1]).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    assert peer.step == 0
    assert not optimizer.state
    for at in peer.steps(2):
        for batch in loader:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()
            break
        if at == 1:
            assert peer.search_start(Net, loss=loss, optimizer=sgd, search=SEARCH) is None


def test_what_is_missing_before_the_call_is_named(peer: Any) -> None:
    with pytest.raises(ConfigError, match="search_start was used before prepare"):
        peer.search_start(Net, loss=loss, optimizer=sgd)
    model = Net()
    peer.prepare(model, sgd(model.parameters()))
    with pytest.raises(ConfigError, match="needs samples, and the session has none"):
        peer.search_start(Net, loss=loss, optimizer=sgd)


def test_a_stream_has_no_samples_to_hold_out(peer: Any) -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter([(torch.zeros(6), 0)])

    model = Net()
    peer.prepare(model, sgd(model.parameters()))
    peer.shard(Stream(), batch_size=1)
    with pytest.raises(ConfigError, match="needs samples"):
        peer.search_start(Net, loss=loss, optimizer=sgd)


def test_what_does_not_fit_is_refused_before_the_first_trial(peer: Any) -> None:
    model = Net()
    peer.prepare(model, sgd(model.parameters()))
    peer.shard(data(), batch_size=16)
    never = pytest.fail
    other = lambda: nn.Linear(6, 3)  # noqa: E731
    with pytest.raises(ConfigError, match="make does not build the model that prepare received"):
        peer.search_start(other, loss=never, optimizer=sgd, search=SEARCH)
    with pytest.raises(ConfigError, match="256 samples cannot be held out of 240"):
        peer.search_start(Net, loss=never, optimizer=sgd)
