"""Parts of a world for both engines, such as the topology, the rule and the settings of the
core."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gossip.aggregators import BoundRule
from gossip.core import CoreSettings
from gossip.topologies import Topology

from .availability import Availability
from .mishaps import Mishaps
from .policies import MovePolicy
from .tasks import Task
from .timing import ComputeTimes, LinkTimes


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Parts of a world.

    Attributes:
        settings: Settings of the core, the same in both engines and in a real run.
        availability: Presence of each peer. When it ends, the peer crashes without notice. When it
            begins again, the peer restarts.
        moves: Policy of swaps of samples between peers; None if peers do not swap.
    """

    settings: CoreSettings
    topology: Topology
    rule: BoundRule
    task: Task
    mishaps: Mishaps
    compute: ComputeTimes
    links: LinkTimes
    availability: Availability = field(default_factory=Availability)
    moves: MovePolicy | None = None

    @property
    def peers(self) -> int:
        return len(self.settings.peers)

    @property
    def honest(self) -> NDArray[np.bool_]:
        """Whether each peer is honest, ``(peers,)``."""
        return ~np.isin(np.arange(self.peers), [*self.mishaps.byzantine])
