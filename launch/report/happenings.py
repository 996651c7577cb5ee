"""Records of faults, deaths, returns and partitions of a run, assembled from the reports of
launchers and peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gossip.errors import GossipError
from gossip.faults import Fault, Partition, parse
from gossip.observe import events

EXIT_ASKED = 143  # exit code of a trainer that left properly after SIGTERM
AFTER_S = 3.0
"""Time after the end of a fault during which it may still have effects, in seconds."""
# seconds; the launcher may receive the report of a death slightly later than the peers
SLACK_S = 0.05


@dataclass(slots=True)
class Blow:
    """Fault that hit the process of a peer, or unplanned death, with the peers that noticed it.
    Times are monotonic seconds."""

    peer: int
    incarnation: int
    kind: str  # planned: crash, restart, hang; unplanned: killed, raised
    round: int
    at: float
    planned: bool
    fault: str = ""  # in the syntax of a plan
    # time of the first skip, by the peer that skipped
    skips: dict[int, float] = field(default_factory=dict)
    # time of the declaration of death, by the declaring peer
    deaths: dict[int, float] = field(default_factory=dict)
    until: float = 0.0  # end of a hang
    woken_at: float | None = None  # after a hang
    started_at: float | None = None  # start of the next process, by a launcher
    raised: events.Halted | None = None  # last report of a script that raised
    returned: bool = False  # whether the peer was alive again; later events belong to another blow
    told_skip: bool = False
    told_dead: bool = False

    @property
    def skip_ms(self) -> float | None:
        """Time from the blow until the last survivor skipped the peer, in milliseconds; None if no
        peer has noticed the blow. If a survivor received the declaration of death before its own
        skip, the time of the declaration counts."""
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
    """Return of a restarted peer, or arrival of a newcomer, until its first round. ``since``: time
    of its death, or of its start as a newcomer."""

    peer: int
    incarnation: int
    since: float | None
    started_at: float | None = None
    round: int | None = None  # its first round
    after_s: float | None = None  # seconds from ``since`` until its first round

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
    """Restart of a peer that died without a planned fault (``--restarts``). ``number``: number of
    the restart; None if no restart was left."""

    peer: int
    round: int
    why: str
    number: int | None
    wait_s: float = 0.0
    incarnation: int | None = None  # incarnation of the restarted peer; None if it did not start


@dataclass(slots=True)
class SuspicionRecord:
    """Suspicion of a peer: the first round with too little trust, the lowest trust, and the
    reasons."""

    round: int | None
    trust: float
    reasons: list[str]


@dataclass(slots=True)
class Injection:
    """Injected fault, reported by ``peer``. ``over_at``: time of its end; None if it lasts, or its
    end was not reported."""

    fault: str
    kind: str
    peer: int
    round: int | None
    at: float
    over_at: float | None = None


@dataclass(slots=True)
class Silence:
    """Period in which other peers received nothing from a peer.

    Attributes:
        first: First report. ``dead``: first report that declares the peer dead, if any.
        back_at: Time at which the peer was alive again; None if it never was.
    """

    peer: int
    first: events.Skip | events.Dead
    dead: events.Dead | None = None
    back_at: float | None = None


@dataclass(slots=True)
class StageLoss:
    """Loss of all peers of a stage of a pipeline. ``rebuilt``: report of the peer that rebuilt the
    state, if any. ``is_away``: whether the stage has no peer now."""

    stage: int | None
    at: float
    round: int | None
    rebuilt: events.StageRebuilt | None = None
    is_away: bool = False


@dataclass(slots=True)
class PartitionRecord(Injection):
    """Fault of links, with the peers that it separated.

    Attributes:
        skipped: Time of the first report that a peer is silent, by peer. The fault may explain this
            silence.
        back_at: Time at which the last peer returned.
    """

    paused: set[int] = field(default_factory=set)
    alone: set[int] = field(default_factory=set)
    sides: tuple[tuple[int, ...], ...] = ()  # () unless it is a partition
    skipped: dict[int, float] = field(default_factory=dict)
    back_at: float | None = None

    def affects(self, t: float) -> bool:
        """Whether the fault was active at ``t``, or shortly before."""
        return self.at <= t and (self.over_at is None or t <= self.over_at + AFTER_S)

    def record_return(self, t: float) -> None:
        """Record that a peer returned at ``t``, if the fault ended shortly before."""
        if self.over_at is not None and self.over_at <= t <= self.over_at + 2 * AFTER_S:
            self.back_at = t

    def is_between(self, one: int, other: int) -> bool:
        """Whether two peers are on different sides of the partition."""
        apart = [{one, other}.intersection(side) for side in self.sides]
        return sum(len(each) == 1 for each in apart) == 2


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def fault_of(word: str) -> Fault | None:
    """Parse a fault in the syntax of a fault plan. The fault of a drill is preceded by the drill's
    number. Return None for any other text."""
    try:
        (fault,) = parse([word.rpartition(": ")[2]])
    except (GossipError, ValueError):
        return None
    return fault


def sides_of(word: str) -> tuple[tuple[int, ...], ...]:
    """Return the sides of a partition that is given in the syntax of a fault plan; () for any other
    fault."""
    fault = fault_of(word)
    return fault.sides if isinstance(fault, Partition) else ()
