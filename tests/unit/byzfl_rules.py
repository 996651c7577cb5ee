"""byzfl's rules, for the tests that compare ours to them. They are asked for: where they cannot be
had, those tests fail."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from gossip_lab.bench.byzfl_rules import module


def byzfl() -> Any:
    found = module()
    if found is None:
        try:
            importlib.import_module("byzfl.aggregators")
        except ImportError as error:
            raise ImportError(
                "`make venv` installs byzfl, or pip install --no-deps byzfl scipy"
            ) from error
    return found


def cloud(n: int, d: int, seed: int = 0) -> Tensor:
    """``(n, d)`` float32: honest updates around one direction, each with noise of its own size."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 0.5 + torch.rand(n, 1, generator=generator)
    return torch.randn(d, generator=generator) + sizes * torch.randn(n, d, generator=generator)


def relative(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, in units of the largest coordinate."""
    return float(
        (ours.to(torch.float64) - theirs.to(torch.float64)).abs().max()
        / theirs.to(torch.float64).abs().max()
    )
