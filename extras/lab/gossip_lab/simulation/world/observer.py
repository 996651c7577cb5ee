"""Whoever looks on while a swarm runs: checkers, recorders, nemeses that wait for a moment.

    swarm.hooks.append(MyObserver())

``swarm`` is the ``Swarm`` that they look at. Hooks are called in the order they were appended.
They may read everything in the swarm and may call its faults (``crash``, ``pause``, ...); they must
not change a core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gossip.core import Effect, Event, Message, PeerId

Watcher = Callable[..., None]
"""``(swarm, peer, event or effect)``."""


MANY = 32
"""Effects of one event from which on they are a flood, or nearly one."""


class Observer:
    """Overrides what it wants to see; the rest does nothing.

    The core of a peer's present life is ``swarm.hosts[peer].core``, the time ``swarm.now`` in
    seconds (``swarm.now_ns``).
    """

    def on_start(self, swarm: Any, peer: PeerId) -> None:
        """A life begins: the core exists and has handled nothing yet."""

    def on_event(self, swarm: Any, peer: PeerId, event: Event) -> None:
        """Before the event is handed to the core."""

    def on_effect(self, swarm: Any, peer: PeerId, effect: Effect) -> None:
        """Before the effect is carried out. If this crashes the peer,
        neither it nor a later one of this event is."""

    def on_flood(self, swarm: Any, peer: PeerId, event: Event) -> None:
        """The core asks for more than ``MANY`` things at once, ``swarm.asked``, none of which has
        been carried out."""

    def after_event(self, swarm: Any, peer: PeerId, event: Event) -> None:
        """The core handled the event and its effects were carried out. Not called when the peer was
        crashed on the way."""

    def on_resume(self, swarm: Any, peer: PeerId) -> None:
        """A process that stood still since ``swarm.hosts[peer].paused_at_ns`` goes on; it has
        handled nothing yet."""

    def on_crash(self, swarm: Any, peer: PeerId) -> None:
        """The process is gone, its core can still be read.
        A core that halts by itself does not crash."""

    def on_fault(self, swarm: Any, peer: PeerId, text: str) -> None:
        """The nemesis does something: to one peer, or (-1) to the network."""

    def on_mishap(
        self, swarm: Any, peer: PeerId, to: PeerId, what: str, message: Message | None
    ) -> None:
        """Something befalls a message from ``peer`` to ``to`` (``what``: as it is counted in
        ``swarm.counts``; lost, cut, lied, queued, ...). None:
        a liar has sent bytes that mean nothing."""

    def watchers(self, moment: str, kind: type) -> tuple[Watcher, ...]:
        """Return the methods to call at a moment (``on_event``, ``on_effect``, ``after_event``) for
        one kind. The kind is the type of an event or an effect, or of its message if that is
        received or sent. An observer that needs only a few kinds selects them here, to save
        time."""
        method = getattr(self, moment)
        return () if getattr(method, "__func__", None) is getattr(Observer, moment) else (method,)


class _ByKind(dict[type, tuple[Watcher, ...]]):
    """The watchers of one moment for each kind, found when it comes up first."""

    def __init__(self, observers: Iterable[Observer], moment: str) -> None:
        super().__init__()
        self._observers, self._moment = tuple(observers), moment

    def __missing__(self, kind: type) -> tuple[Watcher, ...]:
        found = tuple(
            watcher for each in self._observers for watcher in each.watchers(self._moment, kind)
        )
        self[kind] = found
        return found


class Hooks:
    """The observers of a swarm, and for each moment the methods of those alone who look at it."""

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
        self.event = _ByKind(self._observers, "on_event")
        self.flood = self._overriding("on_flood")
        self.effect = _ByKind(self._observers, "on_effect")
        self.after = _ByKind(self._observers, "after_event")
        self.resume = self._overriding("on_resume")
        self.crash = self._overriding("on_crash")
        self.fault = self._overriding("on_fault")
        self.mishap = self._overriding("on_mishap")

    def _overriding(self, name: str) -> tuple[Callable[..., None], ...]:
        plain = getattr(Observer, name)
        methods = (getattr(observer, name) for observer in self._observers)
        return tuple(method for method in methods if getattr(method, "__func__", None) is not plain)
