"""What belongs to one peer alone is saved by that peer, and is whole or not taken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gossip.training.own_state import (
    FOLDER,
    Loaded,
    OwnState,
    has_own,
    load_own,
    mean_of,
    plan_own,
    plan_whole,
    write_own,
)
from gossip.training.state import StateFile


def model_of(mean: float) -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    batchnorm = model[1]
    assert isinstance(batchnorm, nn.BatchNorm1d)
    batchnorm.running_mean.fill_(mean)
    return model


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loaded(folder: Path, peer: int, step: int, model: nn.Module) -> OwnState:
    return load_own(folder, peer, step, Loaded(model, optimizer_of(model)))


def running_mean(model: nn.Module) -> float:
    return float(model.state_dict()["1.running_mean"][0])


def bytes_of(file: StateFile | None) -> bytes:
    memory = bytearray(file.nbytes)
    file.write(memoryview(memory))
    return bytes(memory[: file.length])


def test_buffers_and_the_senders_memory_come_back_to_their_peer(tmp_path: Path) -> None:
    for peer in (0, 1):
        memory = (torch.full((5,), float(peer)), None)
        write_own(
            tmp_path, peer, 50, bytes_of(plan_own(model_of(10.0 + peer), OwnState(memory))), 3
        )
    model = model_of(0.0)
    weight = model.state_dict()["0.weight"].clone()
    own = loaded(tmp_path, 1, 50, model)
    assert (own.extra, own.why) == (None, "")
    memory = own.memory
    assert running_mean(model) == 11.0
    assert memory[1] is None
    assert torch.equal(memory[0], torch.ones(5))
    assert torch.equal(model.state_dict()["0.weight"], weight), "parameters are the swarm's"


def test_of_another_step_or_peer_nothing_is_taken(tmp_path: Path) -> None:
    write_own(tmp_path, 0, 50, bytes_of(plan_own(model_of(5.0), OwnState())), 3)
    for peer, step in ((0, 40), (1, 50)):
        model = model_of(0.0)
        assert loaded(tmp_path, peer, step, model) == OwnState(why="there is no such file")
        assert running_mean(model) == 0.0


def test_where_there_is_nothing_of_that_kind_nothing_is_written() -> None:
    assert plan_own(nn.Linear(2, 2), OwnState()) is None
    assert plan_own(nn.Linear(2, 2), OwnState((torch.ones(3),))) is not None


@pytest.mark.parametrize("at", [0, 9, 100, -1])
def test_what_is_damaged_is_not_taken_and_named(tmp_path: Path, at: int) -> None:
    write_own(tmp_path, 0, 50, bytes_of(plan_own(model_of(5.0), OwnState())), 3)
    (path,) = (tmp_path / FOLDER).iterdir()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    model = model_of(0.0)
    assert loaded(tmp_path, 0, 50, model) == OwnState(why=f"{path} is damaged")
    assert running_mean(model) == 0.0


def test_that_of_another_model_is_not_taken(tmp_path: Path) -> None:
    write_own(tmp_path, 0, 50, bytes_of(plan_own(model_of(5.0), OwnState())), 3)
    other = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    own = loaded(tmp_path, 0, 50, other)
    assert own.memory is None
    assert "1.running_mean is (4,) torch.float32" in own.why


def test_so_many_of_each_peer_stay(tmp_path: Path) -> None:
    data = bytes_of(plan_own(model_of(5.0), OwnState()))
    for step in (10, 20, 30, 40):
        for peer in (0, 1):
            write_own(tmp_path, peer, step, data, 2)
    names = sorted(path.name[:21] for path in (tmp_path / FOLDER).iterdir())
    assert names == [f"peer-{p}.step-0000000{s}" for p in (0, 1) for s in (30, 40)]


def stepped(peer: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model that is this peer's own, with a momentum."""
    torch.manual_seed(peer)
    model = model_of(float(peer))
    optimizer = optimizer_of(model)
    model(torch.randn(5, 3)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def test_all_of_a_peer_comes_back_in_rounds_in_which_peers_differ(tmp_path: Path) -> None:
    for peer in (0, 1):
        file = plan_whole(*stepped(peer), {"scheduler": {"epoch": peer}}, OwnState())
        write_own(tmp_path, peer, 50, bytes_of(file), 3)
    model = model_of(9.0)
    optimizer = optimizer_of(model)
    own = load_own(tmp_path, 1, 50, Loaded(model, optimizer))
    assert own == OwnState(parameters=(), extra={"scheduler": {"epoch": 1}})
    wanted, of_optimizer = stepped(1)
    for name, value in wanted.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
    for at, state in of_optimizer.state_dict()["state"].items():
        kept = optimizer.state_dict()["state"][at]["momentum_buffer"]
        assert torch.equal(state["momentum_buffer"], kept)


def test_the_mean_model_is_that_of_those_who_have_saved(tmp_path: Path) -> None:
    for peer in (0, 2):
        write_own(tmp_path, peer, 50, bytes_of(plan_whole(*stepped(peer), {}, OwnState())), 3)
    assert [has_own(tmp_path, peer, 50) for peer in (0, 1, 2)] == [True, False, True]
    mean, of = mean_of(tmp_path, 50, (2, 1, 0))
    assert of == [0, 2]
    states = [stepped(peer)[0].state_dict() for peer in of]
    for name, value in mean.items():
        if value.is_floating_point():
            assert torch.allclose(value, (states[0][name] + states[1][name]) / 2), name
    assert int(mean["1.num_batches_tracked"]) == int(states[0]["1.num_batches_tracked"])
    assert mean_of(tmp_path, 40, (0, 1, 2)) == ({}, [])
