"""Faults at the start of a run: peers are late or missing. With ``min_peers`` the other peers begin
without them. Only the simulator supports these faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .declare import Fault, declared
from .units import OnePeer, Time


@declared("{peer}@{at_s}", "5@20s")
@dataclass(frozen=True, slots=True)
class LateStart(Fault):
    """The peer is missing when the run starts. Its process starts at ``at_s``, as on a machine that
    boots late."""

    peer: OnePeer
    at_s: Time


@declared("{peer}@{at_s}", "5@20s")
@dataclass(frozen=True, slots=True)
class LateTrainer(Fault):
    """The peer's node runs from the start. Its trainer first loads data and has a model only from
    ``at_s`` on."""

    peer: OnePeer
    at_s: Time


@declared("{peer}", "5")
@dataclass(frozen=True, slots=True)
class NeverStarts(Fault):
    """The peer never starts, because its machine is broken or its job is never scheduled."""

    peer: OnePeer


StartFault: TypeAlias = LateStart | LateTrainer | NeverStarts
