"""Whoever looks on while a swarm runs: checkers, recorders, nemeses that wait for a moment.

    swarm.hooks.append(MyObserver())

Hooks are called in the order they were appended. They may read everything in the swarm and may call its faults (``crash``,
``pause``, ...); they must not change a core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from gossip.core.events import Effect, Event
from gossip.core.messages import PeerId

if TYPE_CHECKING:
    from .driver import Swarm


class Observer:
    """Overrides what it wants to see; the rest does nothing.

    The core of a peer's present life is ``swarm.hosts[peer].core``, the time ``swarm.now`` in seconds (``swarm.now_ns``).
    """

    def on_start(self, swarm: Swarm[Any], peer: PeerId) -> None:
        """A life begins: the core exists and has handled nothing yet."""

    def on_event(self, swarm: Swarm[Any], peer: PeerId, event: Event) -> None:
        """Before the event is handed to the core."""

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        """Before the effect is carried out. If this crashes the peer, neither it nor a later one of this event is."""

    def after_event(self, swarm: Swarm[Any], peer: PeerId, event: Event) -> None:
        """The core handled the event and its effects were carried out. Not called when the peer was crashed on the way."""

    def on_crash(self, swarm: Swarm[Any], peer: PeerId) -> None:
        """The process is gone, its core can still be read. A core that halts by itself does not crash."""


class Hooks:
    """The observers of a swarm, and for each moment the methods of those alone who override it."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._sort()

    def append(self, observer: Observer) -> None:
        self._observers.append(observer)
        self._sort()

    def extend(self, observers: Iterable[Observer]) -> None:
        self._observers.extend(observers)
        self._sort()

    def remove(self, observer: Observer) -> None:
        self._observers.remove(observer)
        self._sort()

    def __iter__(self) -> Iterator[Observer]:
        return iter(self._observers)

    def __len__(self) -> int:
        return len(self._observers)

    def _sort(self) -> None:
        self.start = self._overriding("on_start")
        self.event = self._overriding("on_event")
        self.effect = self._overriding("on_effect")
        self.after = self._overriding("after_event")
        self.crash = self._overriding("on_crash")

    def _overriding(self, name: str) -> tuple[Callable[..., None], ...]:
        plain = getattr(Observer, name)
        methods = (getattr(observer, name) for observer in self._observers)
        return tuple(method for method in methods if getattr(method, "__func__", None) is not plain)


class OnEffect(Observer):
    """Calls ``act(peer, effect)`` before each effect is carried out."""

    def __init__(self, act: Callable[[PeerId, Effect], None]) -> None:
        self._act = act

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        self._act(peer, effect)
