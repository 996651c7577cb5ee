"""Robust aggregation: many updates in, one out, and a verdict on each.
Nothing is imported before it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import outer as outer, registry as registry, senders as senders
    from .base import (
        CoordinateRule as CoordinateRule,
        Rule as Rule,
        Updates as Updates,
        Verdict as Verdict,
        rule as rule,
    )
    from .clipped import (
        centered_clipping as centered_clipping,
        self_centered_clipping as self_centered_clipping,
    )
    from .composing import (
        PreAggregation as PreAggregation,
        Stage as Stage,
        compose as compose,
        pre_aggregation as pre_aggregation,
    )
    from .coordinates import (
        meamed as meamed,
        median as median,
        phocas as phocas,
        sign_majority as sign_majority,
        trimmed_mean as trimmed_mean,
    )
    from .descent import (
        fltrust as fltrust,
        judged_clipping as judged_clipping,
        zeno as zeno,
        zeno_pp as zeno_pp,
    )
    from .distances import bulyan as bulyan, krum as krum, mda as mda, multi_krum as multi_krum
    from .gram import Decision as Decision, Gram as Gram
    from .gram_rules import GramRule as GramRule, gram_rule as gram_rule
    from .guarded import (
        LengthRule as LengthRule,
        add_squares as add_squares,
        average_and_measure as average_and_measure,
        guarded_mean as guarded_mean,
    )
    from .means import mean as mean, mean_of_rows as mean_of_rows
    from .mixing import arc as arc, bucketing as bucketing, clipping as clipping, nnm as nnm
    from .registry import (
        BoundRule as BoundRule,
        load as load,
        names as names,
        pre_aggregations as pre_aggregations,
        register as register,
    )
    from .reweighting import (
        cauchy as cauchy,
        huber as huber,
        reweighted as reweighted,
        suspicion as suspicion,
        suspicion_literal as suspicion_literal,
    )
    from .selecting import cge as cge, faba as faba, monna as monna
    from .senders import Memory as Memory, Sender as Sender
    from .sharded import ShardedRule as ShardedRule
    from .spectral import (
        caf as caf,
        dnc as dnc,
        smea as smea,
        spectral_clipping as spectral_clipping,
    )
    from .weiszfeld import geometric_median as geometric_median, rfa as rfa

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
    "guarded": ("LengthRule", "add_squares", "average_and_measure", "guarded_mean"),
    "means": ("mean", "mean_of_rows"),
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
    "guarded_mean",
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
