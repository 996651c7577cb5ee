"""How the core is put together: who reads, sets and holds what of whom. Read from the source, and
from peers that run."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from parsed import tree_of

from gossip.core import Commit, CoreSettings, Effect, Event, Peer, PeerId, Received
from gossip.topologies import load
from gossip_lab.simulation.world import Swarm, ToyTrainer, address

ROOT = Path(__file__).resolve().parent.parent
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


@pytest.mark.parametrize(
    ("folder", "reach"),
    [
        ("gossip/core", foreign_sets),
        ("extras/lab/gossip_lab/simulation", foreign_privates),
        ("extras/lab/gossip_lab/simulation/checkers", live_parts),
    ],
)
def test_nothing_reaches_into_another_part(
    folder: str, reach: Callable[[ast.Module], Iterator[tuple[int, str]]]
) -> None:
    """The core sets no state of another part, the simulation reads no private attribute, and
    checkers see inspections of what runs."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path, tree in places(folder)
        for line, what in reach(tree)
    ]
    assert found == []


# --- what runs ------------------------------------------------------------------------------


def swarm_of(n: int) -> Swarm[Peer]:
    settings = CoreSettings(b"run-id!!", b"lineage!", seed=5, peers=tuple(range(n)), f=1)
    plan, seeds = load("rolling"), {peer: address(peer, 0) for peer in range(n)}

    def make_core(peer: PeerId, incarnation: int) -> Peer:
        control, bulk = address(peer, incarnation)
        return Peer(peer, incarnation, settings, plan, control=control, bulk=bulk, seeds=seeds)

    return Swarm(make_core, n, 5, make_trainer=lambda peer, incarnation: ToyTrainer(peer, 1))


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
    assert calls <= 125, f"{calls:.1f} calls"
    assert crossings <= 76, f"{crossings:.1f} calls from one module to another"
