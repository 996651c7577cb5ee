"""How the core is put together: who reads, sets and holds what of whom. Read from the source, and
from peers that run."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, MethodType

import pytest

from gossip.core import CoreSettings, Membership, Peer, PeerId, RollingRounds
from gossip.simulation.world import Swarm, ToyTrainer, address
from gossip.topologies import load

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
        (foreign_sets, "self.rounds.shard_bytes = ()", "self.rounds.shard_bytes"),
        (foreign_sets, "self.a, self.poll.asked = 1, 2", "self.poll.asked"),
        (foreign_sets, "self.poll.asked += (1,)", "self.poll.asked"),
        (foreign_sets, "for self.cursor.at_least in x: pass", "self.cursor.at_least"),
        (live_parts, "from gossip.core import Peer, PeerId", "Peer"),
        (live_parts, "def f():\n    from gossip.core import RollingRounds", "RollingRounds"),
    ],
)
def test_a_breach_of_the_wiring_is_found(find, planted: str, found: str) -> None:
    assert [what for _, what in find(ast.parse(planted))] == [found]


# --- what runs ------------------------------------------------------------------------------


def running_peer() -> Peer:
    """A peer of five that has had some rounds, and has seen one come back."""
    settings = CoreSettings(b"run-id!!", b"lineage!", seed=5, peers=tuple(range(5)), f=1)
    plan, seeds = load("rolling"), {peer: address(peer, 0) for peer in range(5)}

    def make_core(peer: PeerId, incarnation: int) -> Peer:
        control, bulk = address(peer, incarnation)
        return Peer(peer, incarnation, settings, plan, control=control, bulk=bulk, seeds=seeds)

    swarm = Swarm(make_core, 5, 5, make_trainer=lambda peer, incarnation: ToyTrainer(peer, 1))
    swarm.run_for(2.0)
    swarm.restart(3)
    swarm.run_for(2.0)
    core = swarm.cores[0]
    assert core.phase == "running"
    assert core.rounds.round_id > 3
    return core


def holders(root: object, kind: type) -> set[str]:
    """Whoever of all objects within reach holds one of that kind: as an attribute, in a container,
    or by a method of it or a function around it."""
    found: set[str] = set()
    seen: set[int] = set()
    ahead = [root]
    while ahead:
        owner = ahead.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        names = [name for base in type(owner).__mro__ for name in getattr(base, "__slots__", ())]
        values = [*getattr(owner, "__dict__", {}).values()]
        values += [getattr(owner, name) for name in names if hasattr(owner, name)]
        while values:
            value = values.pop()
            if isinstance(value, kind):
                found.add(type(owner).__name__)
            if isinstance(value, dict):
                values += [*value.keys(), *value.values()]
            elif isinstance(value, list | tuple | set | frozenset | deque):
                values += value
            elif isinstance(value, MethodType):
                values.append(value.__self__)
            elif isinstance(value, FunctionType):
                values += [cell.cell_contents for cell in value.__closure__ or ()]
            elif type(value).__module__.startswith("gossip.core"):
                ahead.append(value)
    return found


def test_nobody_but_the_peer_holds_the_membership() -> None:
    """The others read its table. The prober asks it what rides on a probe."""
    assert holders(running_peer(), Membership) == {"Peer", "Prober"}


def test_few_hold_the_rounds() -> None:
    """Two of its own parts, which hand a shard on to its next server. The others read how far the
    rounds are, or are told."""
    assert holders(running_peer(), RollingRounds) == {"Peer", "CrossShardRound", "ResultValidator"}


def test_a_holder_is_found_however_it_holds() -> None:
    class Part:
        def method(self) -> None: ...

    part = Part()

    class ByAttribute:
        def __init__(self) -> None:
            self.part = part

    class ByMethod:
        def __init__(self) -> None:
            self.call = part.method

    class ByClosure:
        def __init__(self) -> None:
            self.call = lambda: part

    class InContainer:
        def __init__(self) -> None:
            self.known = {1: [part]}

    for owner in (ByAttribute, ByMethod, ByClosure, InContainer):
        assert holders(owner(), Part) == {owner.__name__}
