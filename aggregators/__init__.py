"""Robust aggregation rules. A rule combines many updates into one, and rates each update.
Submodules are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import outer, registry, senders
    from .base import (
        CoordinateRule,
        Rule,
        Updates,
        Verdict,
        rule,
    )
    from .clipped import (
        centered_clipping,
        self_centered_clipping,
    )
    from .composing import (
        PreAggregation,
        Stage,
        compose,
        pre_aggregation,
    )
    from .coordinates import (
        meamed,
        median,
        phocas,
        sign_majority,
        trimmed_mean,
    )
    from .descent import (
        fltrust,
        judged_clipping,
        zeno,
        zeno_pp,
    )
    from .distances import bulyan, krum, mda, multi_krum
    from .gram import Decision, Gram
    from .gram_rules import GramRule, gram_rule
    from .guarded import (
        LengthRule,
        guarded_mean,
    )
    from .means import mean, mean_of_rows
    from .mixing import arc, bucketing, clipping, nnm
    from .registry import (
        BoundRule,
        load,
        names,
        pre_aggregations,
        register,
    )
    from .reweighting import (
        cauchy,
        huber,
        reweighted,
        suspicion,
        suspicion_literal,
    )
    from .selecting import cge, faba, monna
    from .senders import Memory, Sender
    from .sharded import ShardedRule
    from .spectral import (
        caf,
        dnc,
        smea,
        spectral_clipping,
    )
    from .weiszfeld import geometric_median, rfa
else:
    __getattr__, __dir__ = lazy(__name__)

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
