"""Peers as tasks of a scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import task_runs as task_runs
    from .condor_job import PEER as PEER
    from .condor_job import PEERS as PEERS
    from .condor_job import condor_task as condor_task
    from .condor_job import reached_at as reached_at
    from .condor_job import read_ad as read_ad
    from .condor_job import run_of as run_of
    from .planned_task import refuse_plan as refuse_plan
    from .ray_command import ray as ray
    from .slurm_command import slurm as slurm
    from .task_runs import verdict as verdict
    from .task_words import NO_USE as NO_USE
    from .task_words import check as check
    from .task_words import check_fit as check_fit
    from .task_words import check_options as check_options
    from .task_words import check_resume_elsewhere as check_resume_elsewhere
    from .task_words import environment_of as environment_of
    from .task_words import left_behind as left_behind
    from .task_words import parsed as parsed
    from .task_words import patient as patient
    from .task_words import program_of as program_of
    from .task_words import refuse as refuse
    from .task_words import resolved_for as resolved_for
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "condor_job": (
                "PEER",
                "PEERS",
                "condor_task",
                "reached_at",
                "read_ad",
                "run_of",
            ),
            "planned_task": ("refuse_plan",),
            "ray_command": ("ray",),
            "slurm_command": ("slurm",),
            "task_runs": (
                "task_runs",
                "verdict",
            ),
            "task_words": (
                "NO_USE",
                "check",
                "check_fit",
                "check_options",
                "check_resume_elsewhere",
                "environment_of",
                "left_behind",
                "parsed",
                "patient",
                "program_of",
                "refuse",
                "resolved_for",
            ),
        },
    )
