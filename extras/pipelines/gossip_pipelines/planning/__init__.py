"""Planning of a pipeline: costs of the layers on each peer, and the assignment of layers to peers
that gives the shortest step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .alternatives import DataParallel, data_parallel
    from .breakdown import StagePart, bottleneck, parts_of
    from .costs import (
        Costs,
        StageCosts,
        TrainingStep,
        costs_of,
    )
    from .exact import (
        Cut,
        best_cut,
        cut_at,
    )
    from .files import check_name, write_text
    from .fits import CostLine, fit_line, r_squared
    from .layers import HandedOn, walk_without_data
    from .making import (
        LayerMaker,
        check_same,
        make_layer,
        outline_of,
    )
    from .measure import (
        layers_of,
        measure_layers,
    )
    from .placement import (
        Placement,
        best_placement,
        every_assignment,
        improved,
    )
    from .plan_file import (
        PipelinePlan,
        PlannedStage,
        check_plan,
        check_stages,
        plan_of,
        read_plan,
        write_plan,
    )
    from .planner import (
        PlanAnswer,
        PlanRequest,
        make_plan,
        played_step_s,
    )
    from .profile import (
        LayerProfile,
        PeerProfile,
        model_of,
        read_profile,
        write_profile,
    )
    from .relaxed import search_placement
    from .timeline import StagePass, play
else:
    __getattr__, __dir__ = lazy(__name__)
