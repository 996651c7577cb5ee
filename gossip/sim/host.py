"""What the driver keeps for one process of a peer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from gossip.core import events
from gossip.core.events import Effect, Event, Token
from gossip.core.messages import PeerId

from .toy_trainer import Trainer


class Core(Protocol):
    """A sans-IO state machine."""

    def handle(self, event: Event, now: float) -> list[Effect]: ...


C = TypeVar("C", bound=Core)


@dataclass(slots=True)
class Lane:
    """What one peer has opened towards another: where to, and whether it stands."""

    control: str
    up: bool = False
    to_incarnation: int = 0  # whom it reached
    tries: int = 0
    attempt: int = 0  # names the pending try, so that an outdated one does nothing
    arrives: dict[bool, float] = field(default_factory=dict)  # last arrival by bulk or control: first in, first out
    free_at: float = 0.0  # when the bulk lane has sent what was queued


@dataclass(slots=True)
class Host(Generic[C]):
    """One process of a peer: a core, its trainer, and what the driver keeps for them."""

    peer: PeerId
    incarnation: int
    core: C
    trainer: Trainer | None
    state: Literal["starting", "up", "paused", "crashed", "halted"] = "starting"
    lanes: dict[PeerId, Lane] = field(default_factory=dict)
    timers: dict[Token, float] = field(default_factory=dict)  # pending, and when
    used_tokens: set[Token] = field(default_factory=set)
    inbox: deque[Event] = field(default_factory=deque)  # what came while it was paused
    late_timers: list[tuple[float, Token]] = field(default_factory=list)
    paused_at: float = 0.0
    trainer_stopped: bool = False
    trainer_inbox: list[Event] = field(default_factory=list)
    asked: list[Effect] = field(default_factory=list)  # effects for a stopped trainer
    reports: list[tuple[float, events.Report]] = field(default_factory=list)
    commits: list[tuple[float, events.Committed]] = field(default_factory=list)
    halt: events.Halt | None = None

    @property
    def running(self) -> bool:
        return self.state in ("up", "paused")

    @property
    def killed(self) -> bool:
        return self.state == "crashed"
