"""Temporary seeds for the random generators of torch, numpy and Python. The generators are restored
afterwards, so that the script's random numbers do not change."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from gossip.training import seed_generators


@contextmanager
def apart(seed: int) -> Iterator[None]:
    """Seed the random generators of torch, numpy and Python, and restore them at the end of the
    context."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with torch.random.fork_rng(devices=list(devices)):
        try:
            seed_generators(seed)
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)
