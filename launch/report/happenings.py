"""Faults, deaths, returns and partitions of a run, as its launcher assembles them from the peers'
reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gossip.errors import GossipError
from gossip.faults import Fault, Partition, parse
from gossip.observe import events

EXIT_ASKED = 143  # Exit code of a trainer that left properly after SIGTERM.
AFTER_S = 3.0
"""Time after the end of a fault in which its effects may still show, in seconds."""
SLACK_S = 0.05  # The launcher may receive the report of a death a moment after the peers.


@dataclass(slots=True)
class Blow:
    """A fault that hit a peer, or an unplanned death, and the peers that noticed it. Times are
    monotonic seconds."""

    peer: int
    incarnation: int
    kind: str  # crash, restart, hang; unplanned: killed, raised
    round: int
    at: float
    planned: bool
    fault: str = ""  # in the syntax of a plan
    skips: dict[int, float] = field(default_factory=dict)  # peer -> time of its first skip
    deaths: dict[int, float] = field(default_factory=dict)  # peer -> when it declared the death
    until: float = 0.0  # end of a hang
    woken_at: float | None = None  # after a hang
    started_at: float | None = None  # start of the next process, by a launcher
    raised: events.Halted | None = None  # last report of a script that raised
    returned: bool = False  # alive for others again; later events do not belong to this blow
    told_skip: bool = False
    told_dead: bool = False

    @property
    def skip_ms(self) -> float | None:
        """Time from the blow to the slowest survivor's first skip, in milliseconds; None if no peer
        has noticed it. A survivor that receives the death before its own skip counts from that
        time."""
        return self._until_last({**self.deaths, **self.skips})

    @property
    def dead_ms(self) -> float | None:
        return self._until_last(self.deaths)

    @property
    def noticed_by(self) -> list[int]:
        return sorted({*self.skips, *self.deaths})

    def _until_last(self, noticed: Mapping[int, float]) -> float | None:
        return milliseconds(max(0.0, max(noticed.values()) - self.at) if noticed else None)

    def noticed(self, event: events.Skip | events.Dead, by: int) -> None:
        seen = self.skips if isinstance(event, events.Skip) else self.deaths
        if by != self.peer and event.t >= self.at - SLACK_S:
            seen.setdefault(by, event.t)


@dataclass(slots=True)
class RejoinRecord:
    """A restarted peer or a newcomer before its first round. ``since``: when it died, or was
    started."""

    peer: int
    incarnation: int
    since: float | None
    started_at: float | None = None
    round: int | None = None  # its first round
    after_s: float | None = None  # seconds from ``since`` until that round

    @property
    def after_ms(self) -> float | None:
        return milliseconds(self.after_s)

    def is_of(self, peer: int, incarnation: int) -> bool:
        return (self.peer, self.incarnation) == (peer, incarnation)

    def record_participation(self, round_id: int, t: float) -> None:
        if self.round is None:
            self.round, self.after_s = round_id, None if self.since is None else t - self.since


@dataclass(slots=True)
class RestartRecord:
    """Restart of a peer that died by itself (``--restarts``). ``number``: None if its restarts were
    used up."""

    peer: int
    round: int
    why: str
    number: int | None
    wait_s: float = 0.0
    incarnation: int | None = None  # incarnation of the restarted peer; None if it did not start


@dataclass(slots=True)
class SuspicionRecord:
    """A peer below the threshold of trust: the first round, its lowest trust, and the reasons."""

    round: int | None
    trust: float
    reasons: list[str]


@dataclass(slots=True)
class Injection:
    """A fault that was injected, reported by ``peer``. ``over_at``: None if it lasts, or its end is
    not reported."""

    fault: str
    kind: str
    peer: int
    round: int | None
    at: float
    over_at: float | None = None


@dataclass(slots=True)
class Silence:
    """A time in which others had no reply of a peer.

    Attributes:
        first: First report. ``dead``: first report that declares the peer dead, if any.
        back_at: Time at which the peer was alive again; None means never.
    """

    peer: int
    first: events.Skip | events.Dead
    dead: events.Dead | None = None
    back_at: float | None = None


@dataclass(slots=True)
class StageLoss:
    """Loss of all peers of a stage of a pipeline. ``rebuilt``: report of the peer that rebuilt the
    state; None if none has. ``is_away``: whether the stage has no peer."""

    stage: int | None
    at: float
    round: int | None
    rebuilt: events.StageRebuilt | None = None
    is_away: bool = False


@dataclass(slots=True)
class PartitionRecord(Injection):
    """A fault of links, and the peers that it separated.

    Attributes:
        skipped: Peer that the fault may explain the silence of -> its first report.
        back_at: Time at which the last peer had returned.
    """

    paused: set[int] = field(default_factory=set)
    alone: set[int] = field(default_factory=set)
    sides: tuple[tuple[int, ...], ...] = ()  # only of a partition
    skipped: dict[int, float] = field(default_factory=dict)
    back_at: float | None = None

    def affects(self, t: float) -> bool:
        """Whether the fault was active at a time, or shortly before."""
        return self.at <= t and (self.over_at is None or t <= self.over_at + AFTER_S)

    def record_return(self, t: float) -> None:
        """Record that a peer was back, if the fault was over shortly before."""
        if self.over_at is not None and self.over_at <= t <= self.over_at + 2 * AFTER_S:
            self.back_at = t

    def is_between(self, one: int, other: int) -> bool:
        """Whether two peers are on different sides of the partition."""
        apart = [{one, other}.intersection(side) for side in self.sides]
        return sum(len(each) == 1 for each in apart) == 2


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def fault_of(word: str) -> Fault | None:
    """Parse a fault in the syntax of a fault plan. A drill has its number before it. Return
    None for any other text."""
    try:
        (fault,) = parse([word.rpartition(": ")[2]])
    except (GossipError, ValueError):
        return None
    return fault


def sides_of(word: str) -> tuple[tuple[int, ...], ...]:
    """Return the sides of a partition in the syntax of a fault plan; () for another fault."""
    fault = fault_of(word)
    return fault.sides if isinstance(fault, Partition) else ()
