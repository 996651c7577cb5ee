"""A run in progress, as the parts of its supervisor see it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from gossip.config import RunConfig
from gossip.launch.report import RunModel, Screen
from gossip.observe import Event

from .outcome import RunOutcome, Stop


class OngoingRun(Protocol):
    """The part of ``Supervisor`` that its parts use; see there."""

    config: RunConfig
    command: list[str]
    screen: Screen
    folder: Path
    joins: bool
    peers: dict[int, int]
    view: RunModel
    outcome: RunOutcome

    @property
    def is_training(self) -> bool: ...

    @property
    def is_over(self) -> bool: ...

    def is_here(self, peer: int) -> bool: ...

    def kill_peer(self, after_s: float | None, peer: int, fault: str) -> None: ...

    def stop_peer(self, for_s: float, peer: int, fault: str) -> None: ...

    def ask_peer_to_leave(self, peer: int, fault: str) -> None: ...

    def wake_all(self) -> list[int]: ...

    def lose(self, peer: int) -> None: ...

    def end(self, why: Stop, say: str = "", grace_s: float | None = None) -> None: ...

    def record(self, event: Event, t: float | None = None) -> None: ...
