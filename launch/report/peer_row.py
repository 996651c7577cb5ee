"""State of one peer of a run, as its launcher and other peers see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gossip.observe import Judgement

from .pace import StepPace
from .peer_figures import PeerFigures

State = Literal["starting", "here", "training", "stopped", "gone", "done", "elsewhere"]
"""State of a peer's process, from its own events and its launcher's. ``here``: started, and not yet
in a round. ``gone``: ended. ``elsewhere``: a peer of another launcher. A peer that others declare
dead keeps its state: see ``skipped_by``."""


@dataclass(slots=True)
class PeerRow:
    """State of one peer, as its launcher and other peers see it."""

    peer: int
    state: State = "starting"
    incarnation: int = 0
    round: int = -1
    loss: float | None = None
    logs_loss: bool = False  # whether its script logged ``loss``; else it is the mean of a round
    accuracy: float | None = None
    trust: float = 1.0
    reasons: tuple[str, ...] = ()
    reasons_round: int | None = None  # round in which they were reported
    judged_round: int = -1  # round of the last report about its trust
    suspected: bool = False
    quarantined: bool = False
    skipped_by: set[int] = field(default_factory=set)  # peers that last reported it skipped or dead
    left: bool = False  # whether it left in order; later reports about it do not count
    receiving: bool = False  # whether it has requested the state of others
    pause: str = ""  # why it waits for a quorum; "": it does not
    lie: str = ""
    host: str = ""  # "": not reported
    exit: str = ""
    asked: bool = False  # whether it was stopped on request, as the whole run may be
    step: int = 0  # number of completed steps
    pace: StepPace = field(default_factory=StepPace)
    figures: PeerFigures = field(default_factory=PeerFigures)

    def set_reasons(self, event: Judgement) -> None:
        """Record why the peer is suspected, and the round of the report."""
        self.reasons, self.reasons_round = tuple(event.reasons or ()), event.round

    def is_news(self, event: Judgement) -> bool:
        """True if the event is not older than the last one about its trust. A peer that was away
        reports old rounds."""
        at = self.judged_round if event.round is None else event.round
        self.judged_round, was = max(at, self.judged_round), self.judged_round
        return at >= was

    @property
    def doubt(self) -> str:
        """Last reported reason for suspicion; "": none."""
        if not self.reasons:
            return ""
        at = "" if self.reasons_round is None else f"round {self.reasons_round}: "
        return f"{at}{self.reasons[0]}"
