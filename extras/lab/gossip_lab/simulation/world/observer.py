"""Observers of a running swarm, such as checkers and recorders, and the nemesis if it waits for an
event.

    swarm.hooks.append(MyObserver())

``swarm`` is the observed ``Swarm``. Observers are called in the order in which they were appended.
They may read everything in the swarm, and may inject faults (``crash``, ``pause``, ...), but must
not change a core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gossip.core import Effect, Event, Message, PeerId

Watcher = Callable[..., None]
"""Function ``(swarm, peer, event or effect)``."""


MANY = 32
"""If an event has more effects than this, ``on_flood`` is called."""


class Observer:
    """Base of observers. A subclass overrides the methods that it needs; the other methods do
    nothing.

    ``swarm.hosts[peer].core`` is the core of a peer's present incarnation. ``swarm.now`` is the
    virtual time in seconds.
    """

    def on_start(self, swarm: Any, peer: PeerId) -> None:
        """Observe the start of an incarnation. Its core exists, but has handled no event yet."""

    def on_event(self, swarm: Any, peer: PeerId, event: Event) -> None:
        """Observe an event before the core handles it."""

    def on_effect(self, swarm: Any, peer: PeerId, effect: Effect) -> None:
        """Observe an effect before it is carried out. If this call crashes the peer, this effect
        and all later effects of the event are not carried out."""

    def on_flood(self, swarm: Any, peer: PeerId, event: Event) -> None:
        """Observe an event with more than ``MANY`` effects. The effects are in
        ``swarm.dispatcher.effects``, and none has been carried out yet."""

    def after_event(self, swarm: Any, peer: PeerId, event: Event) -> None:
        """Observe an event after the core has handled it and its effects were carried out. The
        method is not called if the peer was crashed before that."""

    def on_resume(self, swarm: Any, peer: PeerId) -> None:
        """Observe the end of a pause, before the process handles an event. The pause began at
        ``swarm.hosts[peer].paused_at_ns``."""

    def on_crash(self, swarm: Any, peer: PeerId) -> None:
        """Observe a crash. The process has ended, but its core can still be read. The method is not
        called when a core halts by itself."""

    def on_fault(self, swarm: Any, peer: PeerId, text: str) -> None:
        """Observe an action of the nemesis on ``peer``, or on the network if ``peer`` is -1."""

    def on_mishap(
        self, swarm: Any, peer: PeerId, to: PeerId, what: str, message: Message | None
    ) -> None:
        """Observe an effect of the network on a message from ``peer`` to ``to``. ``what`` is the
        key of the effect in ``swarm.counts``, such as ``lost``, ``cut``, ``lied`` or ``queued``.
        ``message`` is None if a Byzantine peer has sent random bytes."""

    def watchers(self, moment: str, kind: type) -> tuple[Watcher, ...]:
        """Return the methods to call at a moment (``on_event``, ``on_effect`` or ``after_event``)
        for events or effects of one kind. The kind is the type of the event or effect; for
        ``Received`` and ``Send`` it is the type of the message. To save time, an observer may
        return methods only for the kinds that it needs."""
        return (getattr(self, moment),)


class _ByKind(dict[type, tuple[Watcher, ...]]):
    """Kind -> methods of observers to call at one moment. They are looked up when the kind first
    occurs."""

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
    """The observers of a swarm, and for each moment the methods to call."""

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
        self.start = self._methods("on_start")
        self.event = _ByKind(self._observers, "on_event")
        self.flood = self._methods("on_flood")
        self.effect = _ByKind(self._observers, "on_effect")
        self.after = _ByKind(self._observers, "after_event")
        self.resume = self._methods("on_resume")
        self.crash = self._methods("on_crash")
        self.fault = self._methods("on_fault")
        self.mishap = self._methods("on_mishap")

    def _methods(self, name: str) -> tuple[Callable[..., None], ...]:
        return tuple([getattr(observer, name) for observer in self._observers])
