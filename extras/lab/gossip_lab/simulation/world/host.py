"""State that the driver keeps for one process of a peer."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from gossip.core import (
    Admission,
    Effect,
    Envelope,
    Event,
    Inspection,
    Membership,
    MembershipInspection,
    Message,
    Payload,
    Peer,
    PeerId,
    Token,
    events,
)
from gossip.inject import OutMessage

from .machine import Machine
from .network import Network
from .observer import Hooks
from .toy_trainer import Said, Trainer


class SansIOCore(Protocol):
    """A sans-IO state machine."""

    def handle(self, event: Event, now: float) -> list[Effect]: ...


C = TypeVar("C", bound=SansIOCore)


class SwarmEnvironment(Protocol):
    """The part of the swarm that its links, messages and slow nodes use."""

    hosts: dict[PeerId, SimProcess[Any]]
    network: Network
    counts: Counter[str]
    hooks: Hooks
    now_ns: int
    run: bytes
    encoded: bool
    copies_per_s: float
    outgoing: Callable[[PeerId, PeerId, Envelope, Payload | None], Iterable[OutMessage]] | None

    def at_ns(self, t_ns: int, act: Callable[..., None], *arguments: Any) -> None: ...

    def deliver(self, host: SimProcess[Any], event: Event, said: bytes | None = None) -> None: ...

    def address_of(self, peer: PeerId, incarnation: int) -> tuple[str, str]: ...


@dataclass(slots=True)
class Lane:
    """Connection that one peer has opened to another: its address, and whether it is up."""

    control: str
    up: bool = False
    to_incarnation: int = 0  # of the receiver, once connected
    tries: int = 0
    attempt: int = 0  # id of the pending attempt: outdated ones have no effect
    breaks: int = 0  # number of resets
    # last arrivals, control and bulk: each lane is first in, first out
    arrives_ns: list[int] = field(default_factory=lambda: [0, 0])
    free_at_ns: int = 0  # time at which the bulk lane is free
    let_go: int = 0  # number of deliveries of all messages in transit at once
    # messages in transit on a link that a fault slows down
    slowed: list[tuple[Any, ...]] = field(default_factory=list)

    def in_order(self, arrives_ns: int, bulk: bool) -> int:
        """Return the arrival time with which the message overtakes no other."""
        last = self.arrives_ns
        if arrives_ns > last[bulk]:
            last[bulk] = arrives_ns
        return last[bulk]


@dataclass(slots=True)
class SimProcess(Generic[C]):
    """One process of a peer: a core, its trainer, and the driver's state for them. Times in reports
    and commits: seconds."""

    peer: PeerId
    incarnation: int
    core: C
    trainer: Trainer | None
    machine: Machine
    dice: random.Random  # decides the effects of the network on its messages
    state: Literal["starting", "up", "paused", "crashed", "halted"] = "starting"
    started_at: float = 0.0  # seconds
    lanes: dict[PeerId, Lane] = field(default_factory=dict)
    # pending: time due (ns), and time requested (s)
    timers: dict[Token, tuple[int, float]] = field(default_factory=dict)
    # events that arrived while it was paused
    inbox: deque[tuple[Event, bytes | None]] = field(default_factory=deque)
    # events that a slow node has not handled yet
    waiting: deque[tuple[Event, bytes | None]] = field(default_factory=deque)
    settling: deque[Event] = field(default_factory=deque)  # events that the node itself caused
    late_timers: list[tuple[int, Token]] = field(default_factory=list)
    paused_at_ns: int = 0
    trainer_stopped: bool = False
    trainer_inbox: list[Said] = field(default_factory=list)
    asked: list[Effect] = field(default_factory=list)  # effects for a stopped trainer
    reports: list[tuple[float, events.Report]] = field(default_factory=list)
    commits: list[tuple[float, events.Committed]] = field(default_factory=list)
    halt: events.Halt | None = None
    admit: Callable[[PeerId, Message], Admission] | None = None
    """Check that the transport makes before it accepts a payload; None if the core accepts any."""
    inspection: Inspection | None = None
    """View of a whole peer for the checkers; None for other cores."""
    membership: MembershipInspection | None = None
    """View of the membership of any core that has one, for the checkers."""

    def __post_init__(self) -> None:
        self.admit = getattr(self.core, "admit", None)
        if isinstance(self.core, Peer):
            self.inspection = Inspection(self.core)
            self.membership = self.inspection.membership
        elif isinstance(membership := getattr(self.core, "membership", None), Membership):
            self.membership = MembershipInspection(membership)

    @property
    def running(self) -> bool:
        return self.state in ("up", "paused")
