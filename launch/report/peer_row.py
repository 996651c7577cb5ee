"""State and figures of one peer of a run, as its launcher and other peers see it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gossip.observe import Judgement, events

from .pace import StepPace

RECENT_ROUNDS = 100
"""Number of last rounds over which a peer's share of late rounds is computed."""


@dataclass(slots=True)
class TotalCount:
    """Sum of a counter that restarts at 0 with each incarnation of a peer."""

    total: int = 0
    last: int = 0

    def record(self, count: int) -> None:
        self.total += count - self.last if count >= self.last else count
        self.last = count


@dataclass(slots=True)
class PeerFigures:
    """Figures of one peer.

    Attributes:
        rounds: Committed rounds since it contributed for the first time.
        contributed: Number of these rounds with its update in the result, even without weight.
        served: Commits that it has made.
        usage: Last usage that it has reported; ``usage_before``: the usage reported before that.
        sent, received: Bytes of all its incarnations, as they reported them; 0 if none has.
        last_at: Time of its own last report. ``started_at``, ``exited_at``: last start and
            last end of its process.
        trained_at: Last report from which it took part in rounds, or was about to do so.
        skipped_for: Reason why it was skipped the last time.
        late_rounds: Rounds that were closed without it after a grace period, among the last
            ``RECENT_ROUNDS`` of which it was in the roster.
    """

    rounds: int = 0
    contributed: int = 0
    served: int = 0
    usage: events.Usage | None = None
    usage_before: events.Usage | None = None
    sent: TotalCount = field(default_factory=TotalCount)
    received: TotalCount = field(default_factory=TotalCount)
    last_at: float = 0.0
    started_at: float | None = None
    exited_at: float | None = None
    trained_at: float | None = None
    skipped_for: str = ""
    late_rounds: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_ROUNDS))

    def record_late(self, round_id: int) -> None:
        """Record a round that was closed without the peer. Each of its shards reports that."""
        if not self.late_rounds or self.late_rounds[-1] != round_id:
            self.late_rounds.append(round_id)

    def record_usage(self, usage: events.Usage) -> None:
        self.usage_before, self.usage = self.usage, usage
        self.sent.record(usage.sent_bytes)
        self.received.record(usage.received_bytes)

    def record_traffic(self, traffic: Mapping[str, int | None]) -> None:
        """Record the bytes that the present incarnation has reported at its end."""
        self.sent.record(traffic.get("sent_bytes") or 0)
        self.received.record(traffic.get("received_bytes") or 0)

    def record_commit(self, contributed: bool) -> None:
        """Record a commit of the peer's stage."""
        self.contributed += contributed
        self.rounds += bool(self.rounds) or contributed

    @property
    def participation(self) -> float | None:
        """Share of the rounds to which it has contributed; None if there was no round."""
        return self.contributed / self.rounds if self.rounds else None

    def late_share(self, last_round: int) -> float | None:
        """Share of the last rounds that were closed without it; None if there was none."""
        count = min(self.rounds, RECENT_ROUNDS)
        late = sum(number > last_round - RECENT_ROUNDS for number in self.late_rounds)
        return min(1.0, late / count) if count else None

    def cpu(self) -> float | None:
        """Processors that it kept busy between its last two reports of usage; None if unknown."""
        now, before = self.usage, self.usage_before
        if now is None or before is None or now.t <= before.t or now.cpu_s < before.cpu_s:
            return None
        return (now.cpu_s - before.cpu_s) / (now.t - before.t)


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
    pid: int | None = None  # of its trainer, while it runs
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
    pause: str = ""  # why it waits for a quorum; "" if it does not
    lie: str = ""
    host: str = ""  # "" if not reported
    exit: str = ""
    asked: bool = False  # whether it was stopped on request, like the whole run
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
        """Last reported reason for suspicion; "" if there is none."""
        if not self.reasons:
            return ""
        at = "" if self.reasons_round is None else f"round {self.reasons_round}: "
        return f"{at}{self.reasons[0]}"
