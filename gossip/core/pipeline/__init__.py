"""Pipelines of peers: which way a micro-batch goes, what happens on it, and when a round is over in
all stages."""

from .audits import Auditor, AuditTimer
from .barrier import (
    BarrierTimer,
    StageBarrier,
)
from .flow import FlowTimer, MicroBatchFlow
from .rebuild import RebuildTimer
from .route import Router
from .stage import StagePipeline
from .stage_watch import StageWatch
