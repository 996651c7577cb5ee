"""What tests of fragments begin with."""

from __future__ import annotations

from typing import Any

import torch
from trainer_fakes import local_steps, pack_state

from gossip.training.layout import Layout
from gossip.training.local_steps import STATE, settings_of

EACH_STEP: dict[str, Any] = {"local_steps": 2, "fragments": 2, "outer": "mean"}
"""One of two fragments is exchanged behind each step."""

IN_FLIGHT: dict[str, Any] = {"local_steps": 4, "overlap": 1, "fragments": 2, "outer": "mean"}
"""One of two fragments behind every other step, while the next steps go on."""


def deep_model(momentum: float = 0.9) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Of four layers. Without ``momentum`` the optimizer remembers no steps before."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(5, 7), torch.nn.Linear(7, 7), torch.nn.Linear(7, 7)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(7, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=momentum)


def state_of_others(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> bytes:
    """What a peer hands over before ``step``, where rounds follow two local steps."""
    theirs = local_steps(Layout(model, optimizer), optimizer.step, 2, "mean")
    return pack_state(model, theirs.outer, {STATE: settings_of(optimizer, step)})
