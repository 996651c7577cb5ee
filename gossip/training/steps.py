"""Hooks before and after the steps of a trainer. They inject faults, and do nothing if the run has
no faults for this peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from gossip.faults import PassResult

from .node_start import PeerPlace


class Steps(Protocol):
    """Interface of the hooks that a session calls."""

    def computed(self, since: float) -> None:
        """Handle an update that is computed, before it is sent. ``since``: time when its
        computation began."""
        return

    def alteration(self, dataset: Any, classes: int | None) -> Callable[[Any], Any]:
        """Return a function that alters each batch, or returns it unchanged."""
        return lambda batch: batch

    def handed_on(self, about: PassResult, round_id: int, number: int, truth: Tensor) -> Tensor:
        """Return the tensor to send as the result of a pass in a pipeline, for micro-batch
        ``number``. ``truth`` is the correct result."""
        return truth


class PlainSteps(Steps):
    """Hooks that do nothing."""


def steps_of(place: PeerPlace) -> Steps:
    config = place.config
    if not (config.drills or config.plan.for_peer(place.peer)):
        return PlainSteps()
    from gossip.inject import FaultyTrainer  # only needed for peers with faults

    return FaultyTrainer(config, place.peer, place.run_dir)
