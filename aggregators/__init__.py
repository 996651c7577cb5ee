"""Robust aggregation: many updates in, one out, and a verdict on each.
Nothing is imported before it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import outer as outer
    from . import registry as registry
    from . import senders as senders
    from .base import CoordinateRule as CoordinateRule
    from .base import Rule as Rule
    from .base import Updates as Updates
    from .base import Verdict as Verdict
    from .base import rule as rule
    from .clipped import centered_clipping as centered_clipping
    from .clipped import self_centered_clipping as self_centered_clipping
    from .composing import PreAggregation as PreAggregation
    from .composing import Stage as Stage
    from .composing import compose as compose
    from .composing import pre_aggregation as pre_aggregation
    from .coordinates import meamed as meamed
    from .coordinates import median as median
    from .coordinates import phocas as phocas
    from .coordinates import sign_majority as sign_majority
    from .coordinates import trimmed_mean as trimmed_mean
    from .descent import fltrust as fltrust
    from .descent import judged_clipping as judged_clipping
    from .descent import zeno as zeno
    from .descent import zeno_pp as zeno_pp
    from .distances import bulyan as bulyan
    from .distances import krum as krum
    from .distances import mda as mda
    from .distances import multi_krum as multi_krum
    from .gram import Decision as Decision
    from .gram import Gram as Gram
    from .gram_rules import GramRule as GramRule
    from .gram_rules import gram_rule as gram_rule
    from .means import mean as mean
    from .mixing import arc as arc
    from .mixing import bucketing as bucketing
    from .mixing import clipping as clipping
    from .mixing import nnm as nnm
    from .registry import BoundRule as BoundRule
    from .registry import load as load
    from .registry import names as names
    from .registry import pre_aggregations as pre_aggregations
    from .registry import register as register
    from .reweighting import cauchy as cauchy
    from .reweighting import huber as huber
    from .reweighting import reweighted as reweighted
    from .reweighting import suspicion as suspicion
    from .reweighting import suspicion_literal as suspicion_literal
    from .selecting import cge as cge
    from .selecting import faba as faba
    from .selecting import monna as monna
    from .senders import Memory as Memory
    from .senders import Sender as Sender
    from .sharded import ShardedRule as ShardedRule
    from .spectral import caf as caf
    from .spectral import dnc as dnc
    from .spectral import smea as smea
    from .spectral import spectral_clipping as spectral_clipping
    from .weiszfeld import geometric_median as geometric_median
    from .weiszfeld import rfa as rfa

_HOMES = {
    "sharded": ("ShardedRule",),
    "senders": (
        "Memory",
        "Sender",
    ),
    "base": ("Rule", "Verdict", "rule", "CoordinateRule", "Updates"),
    "clipped": ("centered_clipping", "self_centered_clipping"),
    "composing": ("PreAggregation", "Stage", "compose", "pre_aggregation"),
    "coordinates": ("meamed", "median", "phocas", "sign_majority", "trimmed_mean"),
    "descent": ("fltrust", "judged_clipping", "zeno", "zeno_pp"),
    "distances": ("bulyan", "krum", "mda", "multi_krum"),
    "gram": ("Decision", "Gram"),
    "gram_rules": ("GramRule", "gram_rule"),
    "means": ("mean",),
    "mixing": ("arc", "bucketing", "clipping", "nnm"),
    "registry": ("BoundRule", "load", "names", "pre_aggregations", "register"),
    "reweighting": ("cauchy", "huber", "reweighted", "suspicion", "suspicion_literal"),
    "selecting": ("cge", "faba", "monna"),
    "spectral": ("caf", "dnc", "smea", "spectral_clipping"),
    "weiszfeld": ("geometric_median", "rfa"),
}
__all__ = [
    "BoundRule",
    "Decision",
    "Gram",
    "GramRule",
    "PreAggregation",
    "Rule",
    "Stage",
    "Verdict",
    "arc",
    "bucketing",
    "bulyan",
    "caf",
    "cauchy",
    "centered_clipping",
    "cge",
    "clipping",
    "compose",
    "dnc",
    "faba",
    "fltrust",
    "geometric_median",
    "gram_rule",
    "huber",
    "judged_clipping",
    "krum",
    "load",
    "mda",
    "meamed",
    "mean",
    "median",
    "monna",
    "multi_krum",
    "names",
    "nnm",
    "phocas",
    "pre_aggregation",
    "pre_aggregations",
    "register",
    "reweighted",
    "rfa",
    "rule",
    "self_centered_clipping",
    "sign_majority",
    "smea",
    "spectral_clipping",
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
