"""Profile of a model on this machine."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gossip.errors import ConfigError
from gossip.launch.report import counted
from gossip.run import shown
from gossip.specs import load_module
from gossip_pipelines.planning import (
    PeerProfile,
    check_name,
    layers_of,
    measure_layers,
    read_profile,
    write_profile,
    write_text,
)

LAYERS_R2, LINKS_R2 = 0.95, 0.99
"""Smallest R² of the fitted lines that is usual on an idle machine."""
UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """Arguments of ``gossip plan profile``. An empty ``name`` means the host name, and an empty
    ``memory`` means the free memory."""

    model: str
    name: str
    out: Path | None
    batches: tuple[int, int]
    repeats: int
    memory: str
    again: bool


def profile_here(request: ProfileRequest) -> str:
    """Measure the layers, and write the profile. Return the result as text.

    Raises: ConfigError: The function, the model, the name or the size is invalid.
    """
    import torch

    name = check_name(request.name or socket.gethostname(), "--name")
    path = request.out or Path(f"{name}.toml")
    before = read_profile(path) if path.exists() else None
    torch.set_num_threads(1)  # Each peer of gossip run has one thread.
    torch.manual_seed(0)
    made = _function_at(request.model)()
    limit = bytes_of(request.memory) if request.memory else psutil.virtual_memory().available
    layers, samples = layers_of(made, request.model)
    use_known = before is not None and before.batches == request.batches and not request.again
    known = {layer.signature: layer for layer in before.layers} if before and use_known else {}
    found = measure_layers(layers, samples, request.batches, request.repeats, known)
    links = before.links if before else {}
    profile = PeerProfile(name, int(limit), request.batches, found.layers, links)
    write_text(path, write_profile(profile))
    whole = request.batches[1]
    step_s = sum(each.forward.at(whole) + each.backward.at(whole) for each in found.layers)
    summary = (
        f"{shown(path)}: {counted(len(layers), 'layer')}, {1e3 * step_s:.3g} ms for {whole} samples"
    )
    if not found.timed:
        return f"{summary}; all layers were already in the file, --again measures them again"
    summary += f"; {found.timed} timed now, R² {found.r2:.3f} at two other numbers of samples"
    return summary + doubt(found.r2, LAYERS_R2)


def doubt(r2: float, expected: float) -> str:
    """Return a warning if the fit of a line is poor; otherwise an empty text."""
    if r2 >= expected:
        return ""
    return f"\n! below {expected}: is the machine busy? Measure again when it is idle"


def bytes_of(text: str) -> int:
    """Parse a size such as ``2GiB`` into bytes. Raises: ConfigError: The text is not a size."""
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]+)?) ?([KMGT]iB)?", text)
    if not found or not 1 <= (size := float(found[1]) * UNITS[found[2] or ""]) <= 2**50:
        raise ConfigError(f"--memory {shown(text)} is not a size", "for example 2GiB or 500MiB")
    return int(size)


def _function_at(spec: str) -> Any:
    place, colon, function = spec.rpartition(":")
    if not colon or not place or not function.isidentifier():
        raise ConfigError(
            f"{shown(spec)} names no function", "for example my_model.py:layers or package:layers"
        )
    found = getattr(load_module(place, function), function, None)
    if not callable(found):
        raise ConfigError(
            f"{place} has no function {function}",
            "the function has no arguments and returns (layers, samples)",
        )
    return found
