"""State that the parts of a run's model share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gossip.observe import events

from .machines import Machines
from .peer_row import PeerRow
from .sentences import Speaker
from .stages import PeerStage

ENDING_S = 5.0  # seconds; finished peers close their links one after the other


@dataclass(slots=True)
class ModelState:
    """State of the peers of a run, and of the lines about them.

    Attributes:
        details: Whether to keep data that only the HTML report needs.
        halted: Last report of each peer about its end.
    """

    rows: dict[int, PeerRow]
    stages: Mapping[int, PeerStage]
    details: bool
    machines: Machines = field(default_factory=Machines)
    speaker: Speaker = field(default_factory=Speaker)
    halted: dict[int, events.Halted] = field(default_factory=dict)

    def is_ending(self, t: float) -> bool:
        """Whether peers close their links because the run ends."""
        ends = [event.t for event in self.halted.values() if not event.exit_code]
        return any(0 <= t - end < ENDING_S for end in ends)
