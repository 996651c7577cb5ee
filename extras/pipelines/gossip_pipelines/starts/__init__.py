"""Search for the initial weights of a model: recipes for weights, trials that compare them on their
plateau, and successive halving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .halving import (
        Claim,
        FoundStart,
        Rung,
        RungOutcome,
        halve,
        read_claims,
    )
    from .recipe import (
        INITS,
        StartRecipe,
        build,
        recipes,
    )
    from .searching import search_start
    from .settings import StartSearch
    from .trial import (
        TrialTask,
        is_on_plateau,
        run_trial,
    )
else:
    __getattr__, __dir__ = lazy(__name__)
