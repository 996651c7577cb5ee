"""What is done around the steps of a trainer beside training: nothing, unless its run has faults
for this peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from gossip.faults import PassResult

from .node_start import PeerPlace


class Steps(Protocol):
    """What a session calls."""

    def computed(self, since: float) -> None:
        """An update is ready, that was computed ``since`` then, and not yet sent."""

    def alteration(self, dataset: Any, classes: int | None) -> Callable[[Any], Any] | None:
        """What is made of each batch of the data, if anything."""

    def handed_on(self, about: PassResult, round_id: int, number: int, truth: Tensor) -> Tensor:
        """What is said to have come out of a pass of micro-batch ``number`` in a pipeline."""


class PlainSteps:
    def computed(self, since: float) -> None:
        pass

    def alteration(self, dataset: Any, classes: int | None) -> None:
        return None

    def handed_on(self, about: PassResult, round_id: int, number: int, truth: Tensor) -> Tensor:
        return truth


def steps_of(place: PeerPlace) -> Steps:
    config = place.config
    if not (config.drills or config.plan.for_peer(place.peer)):
        return PlainSteps()
    from gossip.inject import FaultyTrainer  # for such peers only

    return FaultyTrainer(config, place.peer, place.run_dir)
