"""What belongs to one peer alone is saved by that peer, and is whole or not taken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gossip.training.own_state import FOLDER, load_own, plan_own, write_own
from gossip.training.state import StateFile


def model_of(mean: float) -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    batchnorm = model[1]
    assert isinstance(batchnorm, nn.BatchNorm1d)
    assert batchnorm.running_mean is not None
    batchnorm.running_mean.fill_(mean)
    return model


def mean_of(model: nn.Module) -> float:
    return float(model.state_dict()["1.running_mean"][0])


def bytes_of(file: StateFile | None) -> bytes:
    assert file is not None
    memory = bytearray(file.nbytes)
    file.write(memoryview(memory))
    return bytes(memory[: file.length])


def test_buffers_and_the_senders_memory_come_back_to_their_peer(tmp_path: Path) -> None:
    for peer in (0, 1):
        memory = (torch.full((5,), float(peer)), None)
        write_own(tmp_path, peer, 50, bytes_of(plan_own(model_of(10.0 + peer), memory)), 3)
    model = model_of(0.0)
    weight = model.state_dict()["0.weight"].clone()
    memory, why = load_own(tmp_path, 1, 50, model)
    assert why == ""
    assert mean_of(model) == 11.0
    assert memory is not None
    assert memory[1] is None
    assert torch.equal(memory[0], torch.ones(5))
    assert torch.equal(model.state_dict()["0.weight"], weight), "parameters are the swarm's"


def test_of_another_step_or_peer_nothing_is_taken(tmp_path: Path) -> None:
    write_own(tmp_path, 0, 50, bytes_of(plan_own(model_of(5.0), None)), 3)
    for peer, step in ((0, 40), (1, 50)):
        model = model_of(0.0)
        assert load_own(tmp_path, peer, step, model) == (None, "there is no such file")
        assert mean_of(model) == 0.0


def test_where_there_is_nothing_of_that_kind_nothing_is_written() -> None:
    assert plan_own(nn.Linear(2, 2), None) is None
    assert plan_own(nn.Linear(2, 2), (torch.ones(3),)) is not None


@pytest.mark.parametrize("at", [0, 9, 100, -1])
def test_what_is_damaged_is_not_taken_and_named(tmp_path: Path, at: int) -> None:
    write_own(tmp_path, 0, 50, bytes_of(plan_own(model_of(5.0), None)), 3)
    (path,) = (tmp_path / FOLDER).iterdir()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    model = model_of(0.0)
    assert load_own(tmp_path, 0, 50, model) == (None, f"{path} is damaged")
    assert mean_of(model) == 0.0


def test_that_of_another_model_is_not_taken(tmp_path: Path) -> None:
    write_own(tmp_path, 0, 50, bytes_of(plan_own(model_of(5.0), None)), 3)
    other = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    memory, why = load_own(tmp_path, 0, 50, other)
    assert memory is None
    assert "the model has no such buffer 1.running_mean" in why


def test_so_many_of_each_peer_stay(tmp_path: Path) -> None:
    data = bytes_of(plan_own(model_of(5.0), None))
    for step in (10, 20, 30, 40):
        for peer in (0, 1):
            write_own(tmp_path, peer, step, data, 2)
    names = sorted(path.name[:21] for path in (tmp_path / FOLDER).iterdir())
    assert names == [f"peer-{p}.step-0000000{s}" for p in (0, 1) for s in (30, 40)]
