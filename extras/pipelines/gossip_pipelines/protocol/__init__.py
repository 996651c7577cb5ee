"""The protocol of a pipeline: the route of each micro-batch, its computation, and the end of a
round in all stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .audits import Auditor
    from .barrier import StageBarrier
    from .flow import MicroBatchFlow
    from .route import Router
    from .stage_peer import StagePeer
    from .stage_watch import StageWatch
else:
    __getattr__, __dir__ = lazy(__name__)
