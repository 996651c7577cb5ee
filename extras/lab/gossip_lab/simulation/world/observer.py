"""Observers of a running swarm: checkers, recorders, nemeses that wait for an event.

    swarm.hooks.append(MyObserver())

``swarm`` is the observed ``Swarm``. Hooks are called in the order in which they were appended. They
may read everything in the swarm and may call its faults (``crash``, ``pause``, ...); they must not
change a core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gossip.core import Effect, Event, Message, PeerId

Watcher = Callable[..., None]
"""``(swarm, peer, event or effect)``."""


MANY = 32
"""Numbers of effects of one event that count as a flood, or almost as a flood."""


class Observer:
    """Base of observers, which override the methods that they need; the others do nothing.

    The core of a peer's present incarnation is ``swarm.hosts[peer].core``, the time ``swarm.now``
    in seconds (``swarm.now_ns``).
    """

    def on_start(self, swarm: Any, peer: PeerId) -> None:
        """Observe the start of an incarnation: the core exists and has handled no event yet."""

    def on_event(self, swarm: Any, peer: PeerId, event: Event) -> None:
        """Observe an event before the core handles it."""

    def on_effect(self, swarm: Any, peer: PeerId, effect: Effect) -> None:
        """Observe an effect before it is carried out. If this call crashes the peer, neither this
        effect nor a later one of the event is carried out."""

    def on_flood(self, swarm: Any, peer: PeerId, event: Event) -> None:
        """Observe more than ``MANY`` effects of one event, ``swarm.asked``. None of them has been
        carried out yet."""

    def after_event(self, swarm: Any, peer: PeerId, event: Event) -> None:
        """Observe an event after the core has handled it and its effects were carried out. Not
        called if the peer was crashed before."""

    def on_resume(self, swarm: Any, peer: PeerId) -> None:
        """Observe the end of a pause, which began at ``swarm.hosts[peer].paused_at_ns``. The
        process has handled no event yet."""

    def on_crash(self, swarm: Any, peer: PeerId) -> None:
        """Observe a crash: the process has ended, and its core can still be read. A core that halts
        by itself does not crash."""

    def on_fault(self, swarm: Any, peer: PeerId, text: str) -> None:
        """Observe an action of the nemesis: on one peer, or (-1) on the network."""

    def on_mishap(
        self, swarm: Any, peer: PeerId, to: PeerId, what: str, message: Message | None
    ) -> None:
        """Observe an effect of the network on a message from ``peer`` to ``to``. ``what``: its name
        in ``swarm.counts`` (lost, cut, lied, queued, ...). ``message`` is None if a Byzantine peer
        has sent meaningless bytes."""

    def watchers(self, moment: str, kind: type) -> tuple[Watcher, ...]:
        """Return the methods to call at a moment (``on_event``, ``on_effect``, ``after_event``) for
        one kind. The kind is the type of an event or an effect, or of its message if that is
        received or sent. An observer that needs only a few kinds selects them here, to save
        time."""
        method = getattr(self, moment)
        return () if getattr(method, "__func__", None) is getattr(Observer, moment) else (method,)


class _ByKind(dict[type, tuple[Watcher, ...]]):
    """The watchers of one moment for each kind, found when the kind first occurs."""

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
    """The observers of a swarm, and for each moment only the methods that watch it."""

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
