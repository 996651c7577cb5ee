"""One peer of a run, as the launcher and the others see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gossip.observe import Judgement

from .pace import StepPace
from .peer_figures import PeerFigures

State = Literal["starting", "here", "training", "stopped", "gone", "done", "elsewhere"]
"""State of a peer's process, from its own events and its launcher's: ``here`` is started, and not
yet in a round; ``gone`` has ended. ``elsewhere``: another launcher's peer, of which this one only
hears. A peer that others hold for dead keeps its state: see ``skipped_by``."""


@dataclass(slots=True)
class PeerRow:
    """One peer, as the launcher and the others see it."""

    peer: int
    state: State = "starting"
    incarnation: int = 0
    pid: int = 0
    round: int = -1
    loss: float | None = None
    logs_loss: bool = False  # ``loss`` is what its script has logged, and not the mean of a round
    accuracy: float | None = None
    trust: float = 1.0
    reasons: tuple[str, ...] = ()
    reasons_round: int | None = None  # in which they were told
    judged_round: int = -1  # of what was told last of its trust
    suspected: bool = False
    quarantined: bool = False
    skipped_by: set[int] = field(default_factory=set)  # whose last word on it: skipped, or dead
    left: bool = False  # it said goodbye: whatever is said of it then is no news
    pause: str = ""  # why it waits for a quorum; "": it does not
    lie: str = ""
    host: str = ""  # "": nobody has reported it
    exit: str = ""
    asked: bool = False  # it was stopped, as the whole run is
    step: int = 0  # so many are done
    pace: StepPace = field(default_factory=StepPace)
    figures: PeerFigures = field(default_factory=PeerFigures)

    def set_reasons(self, event: Judgement) -> None:
        """Note why the peer is suspected, and since which round that is known."""
        self.reasons, self.reasons_round = tuple(event.reasons or ()), event.round

    def is_news(self, event: Judgement) -> bool:
        """True if the event is not older than the last one about its trust. A peer that was away
        reports old rounds."""
        at = self.judged_round if event.round is None else event.round
        self.judged_round, was = max(at, self.judged_round), self.judged_round
        return at >= was

    @property
    def doubt(self) -> str:
        """Why it is doubted, as it was told last; "": it is not."""
        if not self.reasons:
            return ""
        at = "" if self.reasons_round is None else f"round {self.reasons_round}: "
        return f"{at}{self.reasons[0]}"
