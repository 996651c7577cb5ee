"""Which peer of a plan a scheduler's task is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gossip.errors import ConfigError
from gossip.launch.schedulers.planned_task import number_of, on_node, refuse_plan
from gossip.run import Task

NAMES = ("lab3", "lab1.local", "lab2")
TASK = Task("srun", "slurm-9.0", peer=0, peers=3, one_host=False)


def test_a_task_is_named_as_the_plan_names_its_peer() -> None:
    assert number_of("lab2", NAMES) == (2, 3)
    with pytest.raises(ConfigError, match="lab4: the plan has no such peer") as no:
        number_of("lab4", NAMES)
    assert "lab3, lab1.local, lab2" in str(no.value.hint)


@pytest.mark.parametrize(
    ("node", "each", "peer"),
    [
        ("lab2", "1(x3)", 2),
        ("lab1", "1(x3)", 1),
        ("lab2.example.org", "1", 2),
        ("other", "1(x3)", 0),
        ("lab2", "2,1", 0),
        ("", "1(x3)", 0),
    ],
)
def test_a_task_of_slurm_is_the_peer_that_is_called_as_its_node_or_of_its_rank(
    node: str, each: str, peer: int
) -> None:
    given = {"SLURMD_NODENAME": node, "SLURM_STEP_TASKS_PER_NODE": each}
    assert on_node(TASK, NAMES, given).peer == peer


def test_another_number_of_tasks_than_peers_is_refused() -> None:
    with pytest.raises(ConfigError, match="the plan has 2 peers, but srun has started 3") as no:
        on_node(TASK, NAMES[:2], {})
    assert no.value.hint == "start a task for each of lab3, lab1.local"


@pytest.mark.parametrize("plan", [None, NAMES])
def test_a_plan_is_refused_where_any_machine_may_get_any_peer(plan: object) -> None:
    resolved: Any = SimpleNamespace(config=SimpleNamespace(pipeline=plan))
    if plan is None:
        refuse_plan(resolved, "Ray")
        return
    with pytest.raises(ConfigError, match="Ray starts a peer on any free machine") as no:
        refuse_plan(resolved, "Ray")
    assert "--task NAME" in str(no.value.hint)
