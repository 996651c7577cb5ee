"""Peers as tasks of a scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import task_runs
    from .condor_job import (
        PEER,
        PEERS,
        condor_task,
        reached_at,
        read_ad,
        run_of,
    )
    from .planned_task import refuse_plan
    from .ray_command import ray
    from .slurm_command import slurm
    from .task_runs import verdict
    from .task_words import (
        NO_USE,
        check,
        check_fit,
        check_options,
        check_resume_elsewhere,
        environment_of,
        left_behind,
        patient,
        refuse,
        resolved_for,
    )
else:
    __getattr__, __dir__ = lazy(__name__)
