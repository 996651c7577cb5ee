"""The run that is drawn for readers who were not told: what may be drawn."""

from __future__ import annotations

import importlib
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from gossip.faults import Crash, FaultPlan, Hang, Partition, Restart, parse

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("every_fault")


def begins(plan: FaultPlan) -> list[float]:
    return sorted(at for fault in plan if (at := getattr(fault, "at_s", None)) is not None)


@pytest.mark.parametrize("seed", range(20))
def test_each_fault_is_drawn_once_and_can_be_seen_alone(tool: ModuleType, seed: int) -> None:
    story = tool.drawn(seed, unplanned=False)
    plan = parse((*story.lies, *story.planned))
    plan.checked(tool.PEERS)
    assert plan.byzantine == set(story.liars)
    kinds = (Crash, Hang, Partition, Restart)
    assert {type(each) for each in plan if isinstance(each, kinds)} == set(kinds)
    assert len(begins(plan)) == len(kinds)
    (server,) = [fault for fault in plan if isinstance(fault, Crash)]
    assert all(fault.at_s < server.at_s for fault in plan if isinstance(fault, Hang | Restart))
    moments = [*begins(plan), story.killed_at_s]
    assert min(b - a for a, b in pairwise(moments)) >= 6.0


def test_what_is_not_planned_comes_at_the_same_moments_from_outside(tool: ModuleType) -> None:
    planned, outside = (tool.drawn(3, unplanned=each) for each in (False, True))
    assert not outside.lies
    assert outside.liars == planned.liars
    told = {fault.peer: fault.at_s for fault in parse(planned.planned) if hasattr(fault, "peer")}
    told.pop("server")
    assert {peer: at for peer, at, _, _ in outside.signals} == told
