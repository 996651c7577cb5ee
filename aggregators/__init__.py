"""Robust aggregation: many updates in, one out, and a verdict on each. Nothing is imported before it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import Rule as Rule
    from .base import Verdict as Verdict
    from .base import rule as rule
    from .coordinates import median as median
    from .coordinates import trimmed_mean as trimmed_mean
    from .descent import zeno as zeno
    from .descent import zeno_pp as zeno_pp
    from .distances import krum as krum
    from .distances import multi_krum as multi_krum
    from .means import mean as mean
    from .registry import BoundRule as BoundRule
    from .registry import load as load
    from .registry import names as names
    from .registry import register as register
    from .reweighting import suspicion as suspicion
    from .reweighting import suspicion_literal as suspicion_literal

_HOMES = {
    "base": ("Rule", "Verdict", "rule"),
    "coordinates": ("median", "trimmed_mean"),
    "descent": ("zeno", "zeno_pp"),
    "distances": ("krum", "multi_krum"),
    "means": ("mean",),
    "registry": ("BoundRule", "load", "names", "register"),
    "reweighting": ("suspicion", "suspicion_literal"),
}
__all__ = [
    "BoundRule",
    "Rule",
    "Verdict",
    "krum",
    "load",
    "mean",
    "median",
    "multi_krum",
    "names",
    "register",
    "rule",
    "suspicion",
    "suspicion_literal",
    "trimmed_mean",
    "zeno",
    "zeno_pp",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
