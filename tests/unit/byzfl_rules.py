"""byzfl's rules, for the tests that compare ours to them; where byzfl is not installed those tests are skipped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gossip.launch.bench_byzfl import module


def byzfl() -> Any:
    found = module()
    if found is None:
        pytest.skip(
            "byzfl is not installed: `make venv` installs it, or pip install --no-deps byzfl scipy", allow_module_level=True
        )
    return found


def cloud(n: int, d: int, seed: int = 0) -> Tensor:
    """``(n, d)`` float32: honest updates around one direction, each with noise of its own size."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 0.5 + torch.rand(n, 1, generator=generator)
    return torch.randn(d, generator=generator) + sizes * torch.randn(n, d, generator=generator)


def relative(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, in units of the largest coordinate."""
    return float((ours.to(torch.float64) - theirs.to(torch.float64)).abs().max() / theirs.to(torch.float64).abs().max())
