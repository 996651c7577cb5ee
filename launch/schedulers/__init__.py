"""Peers as tasks of a scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import task_runs as task_runs
    from .condor_job import (
        PEER as PEER,
        PEERS as PEERS,
        condor_task as condor_task,
        reached_at as reached_at,
        read_ad as read_ad,
        run_of as run_of,
    )
    from .planned_task import refuse_plan as refuse_plan
    from .ray_command import ray as ray
    from .slurm_command import slurm as slurm
    from .task_runs import verdict as verdict
    from .task_words import (
        NO_USE as NO_USE,
        check as check,
        check_fit as check_fit,
        check_options as check_options,
        check_resume_elsewhere as check_resume_elsewhere,
        environment_of as environment_of,
        left_behind as left_behind,
        parsed as parsed,
        patient as patient,
        program_of as program_of,
        refuse as refuse,
        resolved_for as resolved_for,
    )
else:
    __getattr__, __dir__ = lazy(__name__)
