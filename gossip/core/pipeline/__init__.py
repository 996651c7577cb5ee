"""Pipelines of peers: which way a micro-batch goes, what happens on it, and when a round is over in
all stages."""

from .audits import Auditor as Auditor
from .audits import AuditTimer as AuditTimer
from .barrier import BarrierTimer as BarrierTimer
from .barrier import StageBarrier as StageBarrier
from .barrier import StageProgress as StageProgress
from .flow import FlowTimer as FlowTimer
from .flow import MicroBatchFlow as MicroBatchFlow
from .rebuild import RebuildTimer as RebuildTimer
from .rebuild import StageRebuild as StageRebuild
from .route import Router as Router
from .stage import STAGE_TIMERS as STAGE_TIMERS
from .stage import StagePipeline as StagePipeline
from .stage_watch import StageWatch as StageWatch
from .work import Work as Work
