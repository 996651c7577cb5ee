"""State of one process of a peer, as stored by the driver."""

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
    Membership,
    Message,
    Payload,
    Peer,
    PeerId,
    Token,
    events,
)
from gossip.inject import OutMessage
from gossip_lab.inspection import Inspection, MembershipInspection

from .machine import Machine
from .network import Network
from .observer import Hooks
from .toy_trainer import Said, Trainer


class SansIOCore(Protocol):
    """A sans-IO state machine."""

    def handle(self, event: Event, now: float) -> list[Effect]: ...


C = TypeVar("C", bound=SansIOCore)


class SwarmEnvironment(Protocol):
    """The part of ``Swarm`` that the modules for links, messages, trainers and slow nodes use."""

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

    @property
    def now(self) -> float: ...

    def summary(self) -> str: ...

    def address_of(self, peer: PeerId, incarnation: int) -> tuple[str, str]: ...


@dataclass(slots=True)
class Lane:
    """Connection that a peer has opened to another peer."""

    control: str
    up: bool = False
    to_incarnation: int = 0  # incarnation of the receiver, once connected
    tries: int = 0
    attempt: int = 0  # id of the pending attempt to connect; older attempts are void
    breaks: int = 0  # number of resets
    # Last arrival times on the control and the bulk lane, because lanes are first in, first out.
    arrives_ns: list[int] = field(default_factory=lambda: [0, 0])
    free_at_ns: int = 0  # time at which the bulk lane becomes free
    let_go: int = 0  # how often all messages in transit were delivered at once
    # Messages in transit that a fault delays.
    slowed: list[tuple[Any, ...]] = field(default_factory=list)

    def in_order(self, arrives_ns: int, bulk: bool) -> int:
        """Return ``arrives_ns``, or a later time so that the message does not overtake another
        message."""
        last = self.arrives_ns
        if arrives_ns > last[bulk]:
            last[bulk] = arrives_ns
        return last[bulk]


@dataclass(slots=True)
class SimProcess(Generic[C]):
    """One process of a peer: its core, its trainer, and the state that the driver stores for them.
    ``reports`` and ``commits`` have pairs with a time in seconds."""

    peer: PeerId
    incarnation: int
    core: C
    trainer: Trainer | None
    machine: Machine
    dice: random.Random  # for the effects of the network on sent messages
    state: Literal["starting", "up", "paused", "crashed", "halted"] = "starting"
    started_at: float = 0.0  # seconds
    lanes: dict[PeerId, Lane] = field(default_factory=dict)
    # Pending timer -> (due time in ns, requested time in s).
    timers: dict[Token, tuple[int, float]] = field(default_factory=dict)
    # Events that a slow node has not handled yet, or that arrived while the process was paused.
    waiting: deque[tuple[Event, bytes | None]] = field(default_factory=deque)
    settling: deque[Event] = field(default_factory=deque)  # events that the node causes
    late_timers: list[tuple[int, Token]] = field(default_factory=list)
    paused_at_ns: int = 0
    trainer_stopped: bool = False
    trainer_inbox: list[Said] = field(default_factory=list)
    asked: list[Effect] = field(default_factory=list)  # effects for a hanging trainer
    reports: list[tuple[float, events.Report]] = field(default_factory=list)
    commits: list[tuple[float, events.Committed]] = field(default_factory=list)
    halt: events.Halt | None = None
    admit: Callable[[PeerId, Message], Admission] | None = None
    """Check with which the transport decides whether to accept a payload; None if the core accepts
    all payloads."""
    inspection: Inspection | None = None
    """View of a full core for the checkers; None for other cores."""
    membership: MembershipInspection | None = None
    """View of the core's membership for the checkers; None if the core has none."""

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
