"""Settings of a search for a start: which starts are compared, and how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gossip.errors import ConfigError

from .recipe import StartRecipe, recipes

STEPS_MIN = 10


@dataclass(frozen=True, slots=True)
class StartSearch:
    """Starts that ``peer.search_start`` compares, and how long.

    Attributes:
        starts: Recipes, or how many of ``gossip_pipelines.starts.recipes``.
        steps: Steps of each trial, at least 10.
        held_out: Samples by which a trial is measured, and that no trial trains on.
        extensions: How often the trials of the next rung have twice as many steps, and no start is
            left out, because most trials were not on their plateau. 0: the loss after ``steps``
            counts, on the plateau or not.
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
            raise ConfigError("search_start was given no starts", "at least one StartRecipe")

    def recipes(self, seed: int) -> tuple[StartRecipe, ...]:
        """Those that are compared in a run with that seed."""
        return recipes(self.starts, seed) if isinstance(self.starts, int) else tuple(self.starts)
