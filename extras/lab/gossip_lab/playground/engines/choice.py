"""Engines by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from gossip.errors import ConfigError, UnknownName
from gossip_lab.playground.grids import CellResult, WorldCell

from .halving import halve

LOCAL = "local"
ENGINES = {
    LOCAL: ("local", ""),
    "optuna": ("optuna_study", "optuna"),
    "ray": ("ray_tune", "ray"),
    "dask": ("dask_client", "distributed"),
    "condor": ("condor_dag", ""),
}
"""Engine -> its module, and the package that it needs."""
ASYNCHRONOUS = ("optuna", "ray")
"""Engines that stop cells as they report. With the others all cells reach a rung first."""
RISING = ("worst", "mean", "p10")
"""Metrics by which they may: the higher, the better."""


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """Settings of a sweep.

    Attributes:
        folder: Folder of the sweep.
        jobs: Cells to run at once on this machine.
        asha: Metric by which cells are stopped early; empty if none is.
        quiet: Whether no progress is shown.
    """

    folder: Path
    jobs: int = 1
    asha: str = ""
    quiet: bool = False

    @property
    def cells(self) -> Path:
        """Folder of the cells' results."""
        return self.folder / "cells"


CellEngine: TypeAlias = Callable[[Sequence[WorldCell], SweepSettings], dict[WorldCell, CellResult]]
"""Runs the cells that the store of the folder lacks; returns the results that there are."""


def load(name: str, settings: SweepSettings) -> CellEngine:
    """Return an engine by name.

    Raises: ConfigError: There is no such engine, or its package is missing.
    """
    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)
    module, package = ENGINES[name]
    if package and find_spec(package) is None:
        raise ConfigError(
            f"engine {name} needs the package {package}, which is not installed",
            f"pip install 'gossip-lab[{name}]'",
        )
    if settings.asha and settings.asha not in RISING:
        raise UnknownName("metric to stop by", settings.asha, RISING)
    engine: CellEngine = import_module(f".{module}", __package__).run
    return partial(halve, engine) if settings.asha and name not in ASYNCHRONOUS else engine
