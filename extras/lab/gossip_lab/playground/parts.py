"""Parts of a world that both engines play with: the product's own topology, rule and settings."""

from __future__ import annotations

from dataclasses import dataclass

from gossip.aggregators import BoundRule
from gossip.core import CoreSettings
from gossip.topologies import Topology

from .mishaps import Mishaps
from .tasks import Task
from .timing import ComputeTimes, LinkTimes


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Parts of a world.

    Attributes:
        settings: Settings of the core, the same in both engines and in a real run.
    """

    settings: CoreSettings
    topology: Topology
    rule: BoundRule
    task: Task
    mishaps: Mishaps
    compute: ComputeTimes
    links: LinkTimes

    @property
    def peers(self) -> int:
        return len(self.settings.peers)
