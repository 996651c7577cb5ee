"""Faults in who is there when a run begins: with ``min_peers`` the others begin without them. Only
the simulator has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .declare import Fault, declared
from .units import Peer, Seconds, of


@declared("{peer}@{at_s}", "5@20s")
@dataclass(frozen=True, slots=True)
class LateStart(Fault):
    """The peer is not there when the run starts: its process comes at ``at_s``, as that of a
    machine that boots late."""

    peer: int = of(Peer())
    at_s: float = of(Seconds("TIME", "a time"))


@declared("{peer}@{at_s}", "5@20s")
@dataclass(frozen=True, slots=True)
class LateTrainer(Fault):
    """The peer's node is there from the start, its trainer has a model at ``at_s`` only:
    it still reads its data."""

    peer: int = of(Peer())
    at_s: float = of(Seconds("TIME", "a time"))


@declared("{peer}", "5")
@dataclass(frozen=True, slots=True)
class NeverStarts(Fault):
    """The peer never comes: a machine of the list that is broken,
    or a job that is never scheduled."""

    peer: int = of(Peer())


StartFault: TypeAlias = LateStart | LateTrainer | NeverStarts
