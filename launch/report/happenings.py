"""Faults, deaths, returns and partitions of a run, as its launcher assembles them from the peers'
reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from gossip.errors import GossipError
from gossip.faults import Fault, Partition, parse
from gossip.observe import events

SLACK_S = 0.05  # the launcher may hear of a death a moment after the peers did


@dataclass(slots=True)
class Blow:
    """A fault that hit a peer, or a death that nobody planned, and who noticed when. Times are
    monotonic seconds."""

    peer: int
    incarnation: int
    kind: str  # crash, restart, hang; unplanned: killed, raised
    round: int
    at: float
    planned: bool
    skips: dict[int, float] = field(default_factory=dict)  # who -> first skip after the blow
    deaths: dict[int, float] = field(default_factory=dict)  # who -> when it held the peer for dead
    until: float = 0.0  # a hang: when it is over
    returned: bool = False  # alive for others again: what befalls it from then on is another matter
    told_skip: bool = False
    told_dead: bool = False

    @property
    def skip_ms(self) -> float | None:
        """Time from the blow to the slowest survivor's first skip, in milliseconds; None: no peer
        has noticed it. A survivor that receives news of the death before any skip of its own skips
        the peer then."""
        noticed = {**self.deaths, **self.skips}
        return max(0.0, max(noticed.values()) - self.at) * 1000 if noticed else None

    @property
    def dead_ms(self) -> float | None:
        return max(0.0, max(self.deaths.values()) - self.at) * 1000 if self.deaths else None

    def noticed(self, event: events.Skip | events.Dead, by: int) -> None:
        seen = self.skips if isinstance(event, events.Skip) else self.deaths
        if by != self.peer and event.t >= self.at - SLACK_S:
            seen.setdefault(by, event.t)


@dataclass(slots=True)
class RejoinRecord:
    """A peer that was started again, or a newcomer, on its way to its first round. ``since``: when
    it died, or was started."""

    peer: int
    incarnation: int
    since: float | None
    round: int | None = None  # the first that it was in
    after_s: float | None = None  # from ``since`` until then

    def is_of(self, peer: int, incarnation: int) -> bool:
        return (self.peer, self.incarnation) == (peer, incarnation)

    def record_participation(self, round_id: int, t: float) -> None:
        if self.round is None:
            self.round, self.after_s = round_id, None if self.since is None else t - self.since


@dataclass(slots=True)
class RestartRecord:
    """A peer that died by itself and was to be started again (``--restarts``), or was not, because
    its restarts were used up (``number`` is None then)."""

    peer: int
    round: int
    why: str
    number: int | None
    wait_s: float = 0.0
    incarnation: int | None = None  # of the life that came of it; None: none did


@dataclass(slots=True)
class SuspicionRecord:
    """A peer that fell under the threshold of trust: when first, and why; its lowest trust."""

    round: int | None
    trust: float
    reasons: list[str]


@dataclass(slots=True)
class PartitionRecord:
    """Links that were cut, or made worse, and who was apart meanwhile.
    Times are monotonic seconds."""

    fault: str
    round: int
    at: float
    over_at: float | None = None
    paused: set[int] = field(default_factory=set)
    alone: set[int] = field(default_factory=set)
    sides: tuple[tuple[int, ...], ...] = ()  # of a partition

    def is_between(self, one: int, other: int) -> bool:
        """Whether two peers are on different sides of it."""
        apart = [{one, other}.intersection(side) for side in self.sides]
        return sum(len(each) == 1 for each in apart) == 2


def fault_of(word: str) -> Fault | None:
    """A fault as it is typed; of a drill its number stands before it. None: it is none."""
    try:
        (fault,) = parse([word.rpartition(": ")[2]])
    except (GossipError, ValueError):
        return None
    return fault


def sides_of(word: str) -> tuple[tuple[int, ...], ...]:
    """Return the sides of a partition in the syntax of a fault plan. Another fault has none."""
    fault = fault_of(word)
    return fault.sides if isinstance(fault, Partition) else ()
