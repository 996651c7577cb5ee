"""Faults in who is there when a run begins: with ``min_peers`` the others begin without them. Only
the simulator has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class LateStart:
    """The peer is not there when the run starts: its process comes at ``at_s``, as that of a
    machine that boots late."""

    peer: int
    at_s: float = field(metadata={"least": 0, "most": 1e9})

    def __str__(self) -> str:
        return f"late_start:{self.peer} at {self.at_s:g} s"


@dataclass(frozen=True, slots=True)
class LateTrainer:
    """The peer's node is there from the start, its trainer has a model at ``at_s`` only:
    it still reads its data."""

    peer: int
    at_s: float = field(metadata={"least": 0, "most": 1e9})

    def __str__(self) -> str:
        return f"late_trainer:{self.peer} at {self.at_s:g} s"


@dataclass(frozen=True, slots=True)
class NeverStarts:
    """The peer never comes: a machine of the list that is broken,
    or a job that is never scheduled."""

    peer: int

    def __str__(self) -> str:
        return f"never_starts:{self.peer}"


StartFault: TypeAlias = LateStart | LateTrainer | NeverStarts
