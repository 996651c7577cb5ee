"""Pipelines of peers: what layers take on each peer, and which layers on which peers make the
shortest step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .alternatives import DataParallel as DataParallel
    from .alternatives import data_parallel as data_parallel
    from .breakdown import StagePart as StagePart
    from .breakdown import bottleneck as bottleneck
    from .breakdown import parts_of as parts_of
    from .costs import Costs as Costs
    from .costs import StageCosts as StageCosts
    from .costs import TrainingStep as TrainingStep
    from .costs import costs_of as costs_of
    from .exact import Cut as Cut
    from .exact import best_cut as best_cut
    from .exact import cut_at as cut_at
    from .exact import try_every_cut as try_every_cut
    from .executor import Loss as Loss
    from .executor import StageExecutor as StageExecutor
    from .fits import CostLine as CostLine
    from .fits import fit_line as fit_line
    from .fits import r_squared as r_squared
    from .layers import HandedOn as HandedOn
    from .layers import walk_without_data as walk_without_data
    from .making import LayerMaker as LayerMaker
    from .making import check_same as check_same
    from .making import make_layer as make_layer
    from .making import outline_of as outline_of
    from .measure import LayerTimes as LayerTimes
    from .measure import layers_of as layers_of
    from .measure import measure_layers as measure_layers
    from .neighbours import TrainedLayer as TrainedLayer
    from .neighbours import between as between
    from .neighbours import counterparts as counterparts
    from .placement import Placement as Placement
    from .placement import best_placement as best_placement
    from .placement import every_assignment as every_assignment
    from .placement import improved as improved
    from .plan_file import PipelinePlan as PipelinePlan
    from .plan_file import PlannedStage as PlannedStage
    from .plan_file import check_plan as check_plan
    from .plan_file import check_stages as check_stages
    from .plan_file import plan_of as plan_of
    from .plan_file import read_plan as read_plan
    from .plan_file import write_plan as write_plan
    from .planner import PipelineOption as PipelineOption
    from .planner import PlanAnswer as PlanAnswer
    from .planner import PlanRequest as PlanRequest
    from .planner import make_plan as make_plan
    from .planner import played_step_s as played_step_s
    from .profile import LayerProfile as LayerProfile
    from .profile import LinkProfile as LinkProfile
    from .profile import PeerProfile as PeerProfile
    from .profile import model_of as model_of
    from .profile import read_profile as read_profile
    from .profile import write_profile as write_profile
    from .relaxed import Annealing as Annealing
    from .relaxed import search_placement as search_placement
    from .tables import check_name as check_name
    from .timeline import StagePass as StagePass
    from .timeline import play as play
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "alternatives": ("DataParallel", "data_parallel"),
            "breakdown": ("StagePart", "bottleneck", "parts_of"),
            "costs": ("Costs", "StageCosts", "TrainingStep", "costs_of"),
            "exact": ("Cut", "best_cut", "cut_at", "try_every_cut"),
            "executor": ("Loss", "StageExecutor"),
            "fits": ("CostLine", "fit_line", "r_squared"),
            "layers": ("HandedOn", "walk_without_data"),
            "making": ("LayerMaker", "check_same", "make_layer", "outline_of"),
            "measure": ("LayerTimes", "layers_of", "measure_layers"),
            "neighbours": ("TrainedLayer", "between", "counterparts"),
            "placement": ("Placement", "best_placement", "every_assignment", "improved"),
            "plan_file": (
                "PipelinePlan",
                "PlannedStage",
                "check_plan",
                "check_stages",
                "plan_of",
                "read_plan",
                "write_plan",
            ),
            "planner": (
                "PipelineOption",
                "PlanAnswer",
                "PlanRequest",
                "make_plan",
                "played_step_s",
            ),
            "profile": (
                "LayerProfile",
                "LinkProfile",
                "PeerProfile",
                "model_of",
                "read_profile",
                "write_profile",
            ),
            "relaxed": ("Annealing", "search_placement"),
            "tables": ("check_name",),
            "timeline": ("StagePass", "play"),
        },
    )
