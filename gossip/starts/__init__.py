"""Starts of a training, compared on their plateau: the recipes of initial weights, a trial of one,
and the halving of many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .halving import Claim as Claim
    from .halving import FoundStart as FoundStart
    from .halving import Rung as Rung
    from .halving import RungOutcome as RungOutcome
    from .halving import halve as halve
    from .halving import read_claims as read_claims
    from .recipe import INITS as INITS
    from .recipe import StartRecipe as StartRecipe
    from .recipe import apart as apart
    from .recipe import build as build
    from .recipe import recipes as recipes
    from .settings import StartSearch as StartSearch
    from .trial import TrialTask as TrialTask
    from .trial import is_on_plateau as is_on_plateau
    from .trial import run_trial as run_trial
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "halving": ("Claim", "FoundStart", "Rung", "RungOutcome", "halve", "read_claims"),
            "recipe": ("INITS", "StartRecipe", "apart", "build", "recipes"),
            "settings": ("StartSearch",),
            "trial": ("TrialTask", "is_on_plateau", "run_trial"),
        },
    )
