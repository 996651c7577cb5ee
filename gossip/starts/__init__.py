"""Starts of a training, compared on their plateau: the recipes of initial weights, a trial of one,
and the halving of many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .halving import (
        Claim as Claim,
        FoundStart as FoundStart,
        Rung as Rung,
        RungOutcome as RungOutcome,
        halve as halve,
        read_claims as read_claims,
    )
    from .recipe import (
        INITS as INITS,
        StartRecipe as StartRecipe,
        apart as apart,
        build as build,
        recipes as recipes,
    )
    from .settings import StartSearch as StartSearch
    from .trial import (
        TrialTask as TrialTask,
        is_on_plateau as is_on_plateau,
        run_trial as run_trial,
    )
else:
    __getattr__, __dir__ = lazy(__name__)
