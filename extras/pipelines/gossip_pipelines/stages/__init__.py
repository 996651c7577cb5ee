"""Stages of a pipeline: the layers and the passes of one peer, and the reconstruction of its state
after a loss or under another plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .executor import Loss, StageExecutor
    from .neighbours import TrainedLayer, between, counterparts
    from .place import make_stage
else:
    __getattr__, __dir__ = lazy(__name__)
