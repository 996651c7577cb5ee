"""How the core is put together: who reads, sets and holds what of whom. Read from the source, and
from peers that run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
INSPECTION = ROOT / "gossip/core/inspection.py"  # reads what checkers may see, for all of them
LIVE = {"Peer", "Membership", "RollingRounds", "GossipRounds"}
"""What a checker could change: it sees an ``Inspection`` of each."""


def places(folder: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield path, ast.parse(path.read_text())


def foreign_privates(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Private attributes of anything but the object itself."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
            continue
        owner = ast.unparse(node.value)
        if owner not in ("self", "cls", "super()", "os") and not node.attr.startswith("__"):
            yield node.lineno, f"{owner}.{node.attr}"


def live_parts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Imports of what runs, in place of what is to be seen of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "gossip.core":
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in LIVE)


def foreign_sets(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """``self.part.field = ...``: a part whose state is set by another."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store | ast.Del)
            and isinstance(node.value, ast.Attribute)
        ):
            yield node.lineno, ast.unparse(node)


def test_no_part_of_the_core_sets_the_state_of_another() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path, tree in places("gossip/core")
        for line, what in foreign_sets(tree)
    ]
    assert found == []


def test_the_simulation_reads_no_private_attribute() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path, tree in places("gossip/simulation")
        for line, what in foreign_privates(tree)
    ]
    assert found == []


def test_checkers_see_inspections_of_what_runs() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path, tree in places("gossip/simulation/checkers")
        for line, what in live_parts(tree)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("find", "planted", "found"),
    [
        (foreign_privates, "x = core.rounds._shards[0]", "core.rounds._shards"),
        (foreign_privates, "def f(core):\n    core._data = 1", "core._data"),
        (foreign_sets, "self.rounds.sizes = ()", "self.rounds.sizes"),
        (foreign_sets, "self.a, self.poll.asked = 1, 2", "self.poll.asked"),
        (foreign_sets, "self.poll.asked += (1,)", "self.poll.asked"),
        (foreign_sets, "for self.cursor.at_least in x: pass", "self.cursor.at_least"),
        (live_parts, "from gossip.core import Peer, PeerId", "Peer"),
        (live_parts, "def f():\n    from gossip.core import RollingRounds", "RollingRounds"),
    ],
)
def test_a_breach_of_the_wiring_is_found(find, planted: str, found: str) -> None:
    assert [what for _, what in find(ast.parse(planted))] == [found]
