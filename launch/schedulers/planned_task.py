"""Assignment of scheduler tasks to the peers of a pipeline plan. A plan assigns each peer to a
certain machine, because machines are unequal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gossip.errors import ConfigError, suggest_name

if TYPE_CHECKING:
    from gossip.config import Resolved
    from gossip.run import Task

ONE_EACH = re.compile(r"1(\(x[0-9]+\))?")
"""Value of ``SLURM_STEP_TASKS_PER_NODE`` if every node has one task."""


def number_of(given: str, names: Sequence[str]) -> tuple[int, int]:
    """Return the number of the peer in ``--task NAME``, and the number of tasks.

    Raises: ConfigError: The plan has no such peer.
    """
    if given in names:
        return names.index(given), len(names)
    raise ConfigError(
        f"--task {given}: the plan has no such peer{suggest_name(given, names)}",
        f"its peers are {', '.join(names)}: --task {names[0]}, or --task 0/{len(names)}",
    )


def on_node(task: Task, names: Sequence[str], given: Mapping[str, str]) -> Task:
    """Return the task with the peer that has the name of the task's node: by default, a profile has
    the name of the node where it was measured. If nodes have several tasks, or no peer has this
    name, return the task unchanged, with the peer of its rank.

    Args:
        given: Environment variables of the task.
    """
    if task.peers != len(names):
        raise ConfigError(
            f"the plan has {len(names)} peers, but {task.scheduler} has started {task.peers} tasks",
            f"start a task for each of {', '.join(names)}",
        )
    node = given.get("SLURMD_NODENAME", "").partition(".")[0]
    own = [at for at, name in enumerate(names) if name.partition(".")[0] == node]
    if len(own) != 1 or not ONE_EACH.fullmatch(given.get("SLURM_STEP_TASKS_PER_NODE", "")):
        return task
    return replace(task, peer=own[0])


def refuse_plan(resolved: Resolved, scheduler: str) -> None:
    """Check that the run has no pipeline plan. Raises: ConfigError: The run has a plan."""
    if resolved.config.pipeline is not None:
        raise ConfigError(
            f"--plan: {scheduler} starts a peer on any free machine, but a plan names the machines",
            "gossip hosts --plan, or on each machine gossip run --plan PLAN --task NAME",
        )
