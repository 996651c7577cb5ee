"""Settings of a search for a start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gossip.errors import ConfigError

from .recipe import StartRecipe, recipes

STEPS_MIN = 10


@dataclass(frozen=True, slots=True)
class StartSearch:
    """Settings of ``peer.search_start``.

    Attributes:
        starts: Recipes to compare, or their number for ``gossip_pipelines.starts.recipes``.
        steps: Number of steps of each trial, at least 10.
        held_out: Number of samples for the measurement of a trial. No trial trains on them.
        extensions: Largest number of extended rungs. If most trials of a rung are not on their
            plateau, the next rung has the same starts and twice the steps. With 0, the loss after
            ``steps`` counts.
    """

    starts: Sequence[StartRecipe] | int = 8
    steps: int = 200
    held_out: int = 256
    extensions: int = 2

    def __post_init__(self) -> None:
        for name, value, least in (
            ("steps", self.steps, STEPS_MIN),
            ("held_out", self.held_out, 1),
            ("extensions", self.extensions, 0),
        ):
            if type(value) is not int or value < least:
                raise ConfigError(f"{name} is {value!r}, not a number of at least {least}")
        if not isinstance(self.starts, int) and not self.starts:
            raise ConfigError("search_start received no starts", "pass at least one StartRecipe")

    def recipes(self, seed: int) -> tuple[StartRecipe, ...]:
        """Return the recipes to compare. ``seed``: seed of the run."""
        return recipes(self.starts, seed) if isinstance(self.starts, int) else tuple(self.starts)
