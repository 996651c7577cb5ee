"""State and statistics of one peer of a run, from the reports of its launcher and of peers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gossip.observe import Judgement, events

from .pace import StepPace

RECENT_ROUNDS = 100
"""Number of recent rounds over which the share of a peer's late rounds is computed."""


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
    """Statistics of one peer.

    Attributes:
        rounds: Number of committed rounds since the peer contributed for the first time.
        contributed: Number of these rounds that contain the peer's update, even with zero weight.
        served: Number of commits that it made as a server.
        usage: Last reported usage of resources. ``usage_before``: the previous report.
        sent, received: Bytes that all its incarnations have reported; 0 without a report.
        last_at: Time of the peer's own last report. ``started_at``, ``exited_at``: time of the last
            start and of the last end of its process.
        trained_at: Time of the last report that shows it in a round, or about to enter one.
        skipped_for: Reason why it was skipped the last time.
        late_rounds: The last ``RECENT_ROUNDS`` rounds that were closed without the peer after a
            grace period.
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
        """Record a round that was closed without the peer. A round with several shards is reported
        several times, but recorded once."""
        if not self.late_rounds or self.late_rounds[-1] != round_id:
            self.late_rounds.append(round_id)

    def record_usage(self, usage: events.Usage) -> None:
        self.usage_before, self.usage = self.usage, usage
        self.sent.record(usage.sent_bytes)
        self.received.record(usage.received_bytes)

    def record_traffic(self, traffic: Mapping[str, int | None]) -> None:
        """Record the bytes that the present incarnation reports at its end."""
        self.sent.record(traffic.get("sent_bytes") or 0)
        self.received.record(traffic.get("received_bytes") or 0)

    def record_commit(self, contributed: bool) -> None:
        """Record a commit of the peer's stage."""
        self.contributed += contributed
        self.rounds += bool(self.rounds) or contributed

    @property
    def participation(self) -> float | None:
        """Share of ``rounds`` to which the peer has contributed; None if there was no round."""
        return self.contributed / self.rounds if self.rounds else None

    def late_share(self, last_round: int) -> float | None:
        """Return the share of the recent rounds that were closed without the peer; None if there
        was no round."""
        count = min(self.rounds, RECENT_ROUNDS)
        late = sum(number > last_round - RECENT_ROUNDS for number in self.late_rounds)
        return min(1.0, late / count) if count else None

    def cpu(self) -> float | None:
        """Return the number of processors that the peer kept busy between its last two reports;
        None if unknown."""
        now, before = self.usage, self.usage_before
        if now is None or before is None or now.t <= before.t or now.cpu_s < before.cpu_s:
            return None
        return (now.cpu_s - before.cpu_s) / (now.t - before.t)


State = Literal["starting", "here", "training", "stopped", "gone", "done", "elsewhere"]
"""State of a peer's process, from the events of the peer and of its launcher. ``here``: started,
but not yet in a round. ``gone``: ended without finishing. ``elsewhere``: a peer of another
launcher. If other peers declare the peer dead, its state does not change: see ``skipped_by``."""


@dataclass(slots=True)
class PeerRow:
    """State of one peer, from the reports of its launcher and of peers."""

    peer: int
    state: State = "starting"
    incarnation: int = 0
    pid: int | None = None  # pid of its trainer, while the trainer runs
    round: int = -1
    loss: float | None = None
    # whether the script logged ``loss``; otherwise ``loss`` is the mean of a round
    logs_loss: bool = False
    accuracy: float | None = None
    trust: float = 1.0
    reasons: tuple[str, ...] = ()
    reasons_round: int | None = None  # round in which ``reasons`` were reported
    judged_round: int = -1  # round of the last report about the peer's trust
    suspected: bool = False
    quarantined: bool = False
    # peers that skip this peer or declare it dead, by their last reports
    skipped_by: set[int] = field(default_factory=set)
    # whether the peer announced that it leaves; later reports about it do not count
    left: bool = False
    receiving: bool = False  # whether it is receiving a state
    pause: str = ""  # why it waits for a quorum; "" if it does not
    lie: str = ""
    host: str = ""  # "" if not reported
    exit: str = ""
    asked: bool = False  # whether its process ended because the run was stopped
    step: int = 0  # number of completed steps
    pace: StepPace = field(default_factory=StepPace)
    figures: PeerFigures = field(default_factory=PeerFigures)

    def set_reasons(self, event: Judgement) -> None:
        """Record why the peer is suspected, and the round of the report."""
        self.reasons, self.reasons_round = tuple(event.reasons or ()), event.round

    def is_news(self, event: Judgement) -> bool:
        """Whether the event is not older than the last event about the peer's trust. Peers that
        were absent report old rounds."""
        at = self.judged_round if event.round is None else event.round
        self.judged_round, was = max(at, self.judged_round), self.judged_round
        return at >= was

    @property
    def is_present(self) -> bool:
        """Whether the peer takes part, or did so until the end of the run."""
        return self.state != "gone" or self.asked

    @property
    def doubt(self) -> str:
        """Last reported reason for suspicion; "" if there is none."""
        if not self.reasons:
            return ""
        at = "" if self.reasons_round is None else f"round {self.reasons_round}: "
        return f"{at}{self.reasons[0]}"
