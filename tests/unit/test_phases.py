"""The table of phases: the diagram in the docs is made from it, and the core moves by it alone."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest

from gossip.core import peer
from gossip.core.lifecycle.phases import TRANSITIONS, Phase, Trigger, after

DOCS = Path(__file__).parents[2] / "docs" / "architecture.md"


def diagram() -> str:
    """Return the table of phases as a Mermaid state diagram."""
    edges: dict[tuple[Phase, Phase], list[Trigger]] = {}
    for (source, trigger), target in TRANSITIONS.items():
        edges.setdefault((source, target), []).append(trigger)
    arrows = [
        f"    {source} --> {target}: {', '.join(triggers)}"
        for (source, target), triggers in edges.items()
    ]
    return "\n".join(["stateDiagram-v2", "    [*] --> unprepared", *arrows, "    halted --> [*]"])


def test_the_diagram_in_the_docs_is_that_of_the_table() -> None:
    assert diagram() in DOCS.read_text()


def test_every_phase_but_the_last_can_end_and_every_phase_but_the_first_can_begin() -> None:
    every = set(get_args(Phase))
    assert {source for source, _ in TRANSITIONS} == every - {"halted"}
    assert set(TRANSITIONS.values()) == every - {"unprepared"}


def test_every_trigger_is_in_the_table_and_none_beside() -> None:
    assert {trigger for _, trigger in TRANSITIONS} == set(get_args(Trigger))


def test_what_the_table_does_not_have_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="'prepared' cannot happen while running"):
        after("running", "prepared")


def test_the_core_changes_its_phase_by_the_table_alone() -> None:
    tree = ast.parse(Path(peer.__file__).read_text())
    assigned = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in ast.walk(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        if isinstance(target, ast.Attribute) and target.attr == "phase"
    ]
    assert assigned == [
        "self.phase: Phase = 'unprepared'",
        "self.phase = after(self.phase, trigger)",
    ]
