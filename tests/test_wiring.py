"""How the core is put together: who reads, sets and holds what of whom. Read from the source, and
from peers that run."""

from __future__ import annotations

import ast
import sys
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, FunctionType, MethodType

import pytest
from parsed import tree_of

from gossip.core import (
    Commit,
    CoreSettings,
    Effect,
    Event,
    Membership,
    Peer,
    PeerId,
    Received,
    RollingRounds,
)
from gossip.topologies import load
from gossip_lab.simulation.world import Swarm, ToyTrainer, address

ROOT = Path(__file__).resolve().parent.parent
INSPECTION = ROOT / "gossip/core/inspection.py"  # reads what checkers may see, for all of them
LIVE = {"Peer", "Membership", "RollingRounds", "GossipRounds"}
"""What a checker could change: it sees an ``Inspection`` of each."""


def places(folder: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield path, tree_of(path)


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
        for path, tree in places("extras/lab/gossip_lab/simulation")
        for line, what in foreign_privates(tree)
    ]
    assert found == []


def test_checkers_see_inspections_of_what_runs() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path, tree in places("extras/lab/gossip_lab/simulation/checkers")
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


def swarm_of(n: int) -> Swarm[Peer]:
    settings = CoreSettings(b"run-id!!", b"lineage!", seed=5, peers=tuple(range(n)), f=1)
    plan, seeds = load("rolling"), {peer: address(peer, 0) for peer in range(n)}

    def make_core(peer: PeerId, incarnation: int) -> Peer:
        control, bulk = address(peer, incarnation)
        return Peer(peer, incarnation, settings, plan, control=control, bulk=bulk, seeds=seeds)

    return Swarm(make_core, n, 5, make_trainer=lambda peer, incarnation: ToyTrainer(peer, 1))


def running_peer() -> Peer:
    """A peer of five that has had some rounds, and has seen one come back."""
    swarm = swarm_of(5)
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


# --- the short way --------------------------------------------------------------------------------


class CallCounter:
    """Counts calls of functions within the core, and those that lead from one module to another.
    The body of a comprehension is part of the function that it is in."""

    def __init__(self) -> None:
        self.events: Counter[type] = Counter()
        self.calls: Counter[type] = Counter()
        self.crossings: Counter[type] = Counter()
        self.kind: type = Event

    def see(self, frame: FrameType, what: str, _: object) -> None:
        code, caller = frame.f_code, frame.f_back
        comprehension = code.co_name.startswith("<") and code.co_name != "<lambda>"
        if what != "call" or comprehension or not self.is_core(frame):
            return
        self.calls[self.kind] += 1
        if caller is not None and self.is_core(caller):
            self.crossings[self.kind] += caller.f_code.co_filename != code.co_filename

    def is_core(self, frame: FrameType) -> bool:
        return "/gossip/core/" in frame.f_code.co_filename

    def attach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        handle = Peer.handle

        def counted(peer: Peer, event: Event, now: float) -> list[Effect]:
            self.kind = type(event.message) if isinstance(event, Received) else type(event)
            self.events[self.kind] += 1
            before = sys.getprofile()
            sys.setprofile(self.see)
            try:
                return handle(peer, event, now)
            finally:
                sys.setprofile(before)

        monkeypatch.setattr(Peer, "handle", counted)

    def per_event(self, kind: type) -> tuple[float, float]:
        """Calls, and those from one module to another."""
        return self.calls[kind] / self.events[kind], self.crossings[kind] / self.events[kind]


def test_a_commit_goes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one that ends a round costs is seen in each run: a call more for each peer, or a fact
    that is worked out twice, is found here."""
    swarm, counter = swarm_of(4), CallCounter()
    swarm.run_until(lambda: swarm.cores[0].rounds.round_id >= 20, limit_s=20)
    counter.attach(monkeypatch)
    swarm.run_until(lambda: swarm.cores[0].rounds.round_id >= 40, limit_s=20)
    assert counter.events[Commit] > 50
    calls, crossings = counter.per_event(Commit)
    assert calls <= 127, f"{calls:.1f} calls"
    assert crossings <= 74, f"{crossings:.1f} calls from one module to another"
