"""A stage that goes on with layers that other stages have saved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from gossip.errors import ConfigError
from gossip.run import checkpoints, stage_parts
from gossip.training import NORMS
from gossip.training.state import plan_checkpoint
from gossip_pipelines.stages.rebuilding import StageModel
from gossip_pipelines.stages.recutting import load_recut

MODEL = "0123456789abcdef"
SAVED = ((0, 1), (2, 3))
NOW = (1, 2)  # the layers of the stage that goes on


def layer(seed: int, width: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width))


def optimizer(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """Not in the order of the parameters: those of one dimension come first."""
    every = list(parameters)
    flat, others = [p for p in every if p.ndim == 1], [p for p in every if p.ndim > 1]
    groups = [{"params": flat, "weight_decay": 0.0}, {"params": others}]
    return torch.optim.Adam(groups, lr=0.5)


def trained(first: int, last: int) -> tuple[nn.ModuleDict, torch.optim.Optimizer]:
    model = nn.ModuleDict({str(at): layer(at) for at in range(first, last + 1)})
    own = optimizer(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape)
    own.step()
    own.param_groups[1]["lr"] = 0.25  # as a scheduler has left it
    return model, own


def save(folder: Path) -> list[tuple[nn.ModuleDict, torch.optim.Optimizer]]:
    saved = []
    for stage, layers in enumerate(SAVED):
        model, own = trained(*layers)
        extra = {"kept": {"epoch": 7}, NORMS: {str(at): float(at) for at in layers}}
        files = {}
        moved = list(model.parameters())[1:]
        for name, file in plan_checkpoint(model, own, extra, moved).items():
            memory = bytearray(file.nbytes)
            file.write(memoryview(memory))
            files[name] = bytes(memory[: file.length])
        ledger = {"round": 9, "chain": f"{stage:032x}", "whole": True}
        files["ledger.json"] = json.dumps(ledger).encode()
        place = checkpoints.stage_folder(folder, stage)
        checkpoints.write(place, 8, files, stage_parts.about(SAVED, MODEL), keep=3)
        saved.append((model, own))
    return saved


def stage(width: int = 3) -> StageModel:
    layers = [layer(at + 10, width) for at in range(4)]
    model = nn.ModuleDict({str(at): layers[at] for at in range(NOW[0], NOW[1] + 1)})
    outlines = [nn.Module.to(layer(0), "meta") for _ in layers]
    return StageModel(((0, 0), NOW, (3, 3)), 1, model, outlines, [""] * 4, optimizer)


def moments(model: nn.Module, own: torch.optim.Optimizer, number: str) -> dict[str, torch.Tensor]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: state["exp_avg"]
        for parameter, state in own.state.items()
        if names[id(parameter)].startswith(f"{number}.")
    }


def test_layers_come_with_their_moments_from_the_stages_that_had_them(tmp_path: Path) -> None:
    saved = save(tmp_path)
    now = stage()
    own = optimizer(now.model.parameters())
    parts = stage_parts.of_layers(tmp_path, 8, NOW, MODEL)
    recut = load_recut(now, own, parts, lambda extra: None)
    for number, (model, former) in zip(("1", "2"), saved, strict=True):
        for name, tensor in model[number].state_dict().items():
            assert torch.equal(now.model[number].state_dict()[name], tensor), (number, name)
        found, expected = moments(now.model, own, number), moments(model, former, number)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert [group["lr"] for group in own.param_groups] == [0.5, 0.25]
    assert recut.extra == {"kept": {"epoch": 7}, NORMS: {"1": 1.0, "2": 2.0}}
    ledger = json.loads(recut.ledger)
    assert (recut.round_id, ledger["round"], ledger["whole"], ledger["tables"]) == (9, 9, True, [])


def test_layers_of_other_shapes_are_refused_by_their_number(tmp_path: Path) -> None:
    save(tmp_path)
    now = stage(width=4)
    parts = stage_parts.of_layers(tmp_path, 8, NOW, MODEL)
    own = optimizer(now.model.parameters())
    with pytest.raises(ConfigError, match="does not fit this script: layer 1 has"):
        load_recut(now, own, parts, lambda extra: None)


def test_a_damaged_part_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    place = checkpoints.stage_folder(tmp_path, 1) / checkpoints.name_of(8) / "training.safetensors"
    data = bytearray(place.read_bytes())
    data[-1] ^= 1
    place.write_bytes(data)
    now = stage()
    parts = stage_parts.of_layers(tmp_path, 8, NOW, MODEL)
    own = optimizer(now.model.parameters())
    with pytest.raises(checkpoints.DamagedCheckpoint):
        load_recut(now, own, parts, lambda extra: None)
