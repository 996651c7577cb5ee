"""Engines by name."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.util import find_spec

from gossip.errors import ConfigError, UnknownName

from .halving import halve
from .settings import CellEngine, SweepSettings

LOCAL = "local"
ENGINES = {
    LOCAL: ("local", ""),
    "optuna": ("optuna_study", "optuna"),
    "ray": ("ray_tune", "ray"),
    "dask": ("dask_client", "distributed"),
    "condor": ("condor_dag", ""),
}
"""Name of an engine -> its module, and the package that it needs."""


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
            f"pip install {package}",
        )
    engine: CellEngine = import_module(f".{module}", __package__).run
    return partial(halve, engine) if settings.asha else engine
