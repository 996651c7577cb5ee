"""Hooks around the steps of a trainer, which do nothing unless the run has faults for this peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from gossip.faults import PassResult

from .node_start import PeerPlace


class Steps(Protocol):
    """Interface of the hooks that a session calls."""

    def computed(self, since: float) -> None:
        """Handle an update before it is sent. Its computation began at ``since``."""
        return

    def alteration(self, dataset: Any, classes: int | None) -> Callable[[Any], Any] | None:
        """Return the function that alters each batch of the data; None if batches are not
        altered."""
        return None

    def handed_on(self, about: PassResult, round_id: int, number: int, truth: Tensor) -> Tensor:
        """Return the tensor to send as the result of a pass of micro-batch ``number`` in a
        pipeline."""
        return truth


class PlainSteps(Steps):
    """Hooks that do nothing."""


def steps_of(place: PeerPlace) -> Steps:
    config = place.config
    if not (config.drills or config.plan.for_peer(place.peer)):
        return PlainSteps()
    from gossip.inject import FaultyTrainer  # only needed for peers with faults

    return FaultyTrainer(config, place.peer, place.run_dir)
