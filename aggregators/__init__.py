"""Robust aggregation: many updates in, one out, and a verdict on each. Nothing is imported before it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import Rule as Rule
    from .base import Verdict as Verdict
    from .base import rule as rule
    from .composing import PreAggregation as PreAggregation
    from .composing import compose as compose
    from .composing import pre_aggregation as pre_aggregation
    from .coordinates import meamed as meamed
    from .coordinates import median as median
    from .coordinates import phocas as phocas
    from .coordinates import sign_majority as sign_majority
    from .coordinates import trimmed_mean as trimmed_mean
    from .descent import zeno as zeno
    from .descent import zeno_pp as zeno_pp
    from .distances import krum as krum
    from .distances import multi_krum as multi_krum
    from .gram import Decision as Decision
    from .gram import Gram as Gram
    from .gram_rules import GramRule as GramRule
    from .gram_rules import gram_rule as gram_rule
    from .means import mean as mean
    from .mixing import nnm as nnm
    from .registry import BoundRule as BoundRule
    from .registry import load as load
    from .registry import names as names
    from .registry import pre_aggregations as pre_aggregations
    from .registry import register as register
    from .reweighting import suspicion as suspicion
    from .reweighting import suspicion_literal as suspicion_literal

_HOMES = {
    "base": ("Rule", "Verdict", "rule"),
    "composing": ("PreAggregation", "compose", "pre_aggregation"),
    "coordinates": ("meamed", "median", "phocas", "sign_majority", "trimmed_mean"),
    "descent": ("zeno", "zeno_pp"),
    "distances": ("krum", "multi_krum"),
    "gram": ("Decision", "Gram"),
    "gram_rules": ("GramRule", "gram_rule"),
    "means": ("mean",),
    "mixing": ("nnm",),
    "registry": ("BoundRule", "load", "names", "pre_aggregations", "register"),
    "reweighting": ("suspicion", "suspicion_literal"),
}
__all__ = [
    "BoundRule",
    "Decision",
    "Gram",
    "GramRule",
    "PreAggregation",
    "Rule",
    "Verdict",
    "compose",
    "gram_rule",
    "krum",
    "load",
    "meamed",
    "mean",
    "median",
    "multi_krum",
    "names",
    "nnm",
    "phocas",
    "pre_aggregation",
    "pre_aggregations",
    "register",
    "rule",
    "sign_majority",
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
