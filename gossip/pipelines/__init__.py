"""Pipelines of peers: what layers take on each peer, and which layers on which peers make the
shortest step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .alternatives import DataParallel as DataParallel, data_parallel as data_parallel
    from .breakdown import StagePart as StagePart, bottleneck as bottleneck, parts_of as parts_of
    from .costs import (
        Costs as Costs,
        StageCosts as StageCosts,
        TrainingStep as TrainingStep,
        costs_of as costs_of,
    )
    from .exact import (
        Cut as Cut,
        best_cut as best_cut,
        cut_at as cut_at,
        try_every_cut as try_every_cut,
    )
    from .executor import Loss as Loss, StageExecutor as StageExecutor
    from .fits import CostLine as CostLine, fit_line as fit_line, r_squared as r_squared
    from .layers import HandedOn as HandedOn, walk_without_data as walk_without_data
    from .making import (
        LayerMaker as LayerMaker,
        check_same as check_same,
        make_layer as make_layer,
        outline_of as outline_of,
    )
    from .measure import (
        LayerTimes as LayerTimes,
        layers_of as layers_of,
        measure_layers as measure_layers,
    )
    from .neighbours import (
        TrainedLayer as TrainedLayer,
        between as between,
        counterparts as counterparts,
    )
    from .placement import (
        Placement as Placement,
        best_placement as best_placement,
        every_assignment as every_assignment,
        improved as improved,
    )
    from .plan_file import (
        PipelinePlan as PipelinePlan,
        PlannedStage as PlannedStage,
        check_plan as check_plan,
        check_stages as check_stages,
        plan_of as plan_of,
        read_plan as read_plan,
        write_plan as write_plan,
    )
    from .planner import (
        PipelineOption as PipelineOption,
        PlanAnswer as PlanAnswer,
        PlanRequest as PlanRequest,
        make_plan as make_plan,
        played_step_s as played_step_s,
    )
    from .profile import (
        LayerProfile as LayerProfile,
        LinkProfile as LinkProfile,
        PeerProfile as PeerProfile,
        model_of as model_of,
        read_profile as read_profile,
        write_profile as write_profile,
    )
    from .relaxed import Annealing as Annealing, search_placement as search_placement
    from .tables import check_name as check_name
    from .timeline import StagePass as StagePass, play as play
else:
    __getattr__, __dir__ = lazy(__name__)
