"""Pipelines of peers: which way a micro-batch goes, what happens on it, and when a round is over in
all stages."""

from .audits import Auditor as Auditor, AuditTimer as AuditTimer
from .barrier import (
    BarrierTimer as BarrierTimer,
    StageBarrier as StageBarrier,
    StageProgress as StageProgress,
)
from .flow import FlowTimer as FlowTimer, MicroBatchFlow as MicroBatchFlow
from .rebuild import RebuildTimer as RebuildTimer, StageRebuild as StageRebuild
from .route import Router as Router
from .stage import StagePipeline as StagePipeline
from .stage_watch import StageWatch as StageWatch
from .work import Work as Work
