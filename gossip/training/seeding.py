"""Seeds the generators of torch, numpy and Python from one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch


def seed_generators(seed: int, devices: bool = True) -> None:
    """Seed the generators of torch, numpy and Python. ``devices``: whether to seed torch's
    generators on GPUs, too. numpy gets only the lowest 32 bits of the seed."""
    # Seeding only the generators in use takes 0.001 ms. torch.manual_seed takes 0.1 ms, because it
    # seeds every kind of device.
    torch.default_generator.manual_seed(seed % 2**63)
    if devices and torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed % 2**63)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def seeded_generators(
    seed: int, devices: Sequence[int | torch.device] | None = None
) -> Iterator[None]:
    """Seed the generators of torch, numpy and Python for the ``with`` block. Restore them
    afterwards. ``devices``: GPUs with generators to restore; None means all."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    forked = devices
    if forked is None:
        forked = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with torch.random.fork_rng(list(forked)):
        try:
            seed_generators(seed, devices=devices is None)
            for each in devices or ():
                with torch.cuda.device(each):
                    torch.cuda.manual_seed(seed % 2**63)
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)


def drawing_from(seed: int, device: torch.device) -> AbstractContextManager[None]:
    """Return a context manager as ``seeded_generators`` does, for the CPU and ``device``."""
    return seeded_generators(seed, [device] if device.type == "cuda" else ())
