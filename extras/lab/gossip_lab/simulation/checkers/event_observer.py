"""Observers with decorated methods. The decorator determines when a method is called, and the
annotation of its last parameter determines for which types.

    class CountsPushes(EventObserver):
        @on_event
        def count(self, event: Received, push: Push) -> None: ...

        @around_event
        def compare(self, event: Received, push: Push) -> Iterator[None]:
            ...  # before the core handles the event
            yield
            ...  # after all effects were carried out; ``return`` instead of ``yield`` ends it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_type_hints

from gossip.core import Message, PeerId, Received, Send
from gossip_lab.inspection import (
    GossipInspection,
    Inspection,
    MembershipInspection,
    RollingInspection,
)
from gossip_lab.simulation.world import AnySwarm, Observer, Watcher

Method = TypeVar("Method", bound=Callable[..., object])
M = TypeVar("M")
MESSAGES = frozenset(get_args(Message))


class _Handler(NamedTuple):
    """A decorated method.

    Attributes:
        kinds: Types of events, effects or messages for which the method is called.
        carried: Whether the method has two parameters: a ``Received`` or ``Send``, and its message.
        reports: Names of the reports for which the method is called; empty if it does not watch
            reports.
    """

    name: str
    moment: str
    kinds: tuple[type, ...]
    carried: bool
    reports: tuple[str, ...]


def _declare(moment: str, *reports: str) -> Callable[[Method], Method]:
    def declare(method: Method) -> Method:
        method.declared = moment, reports  # type: ignore[attr-defined]
        return method

    return declare


on_event = _declare("on_event")
on_effect = _declare("on_effect")
after_event = _declare("after_event")
around_event = _declare("around_event")


def on_report(*events: str) -> Callable[[Method], Method]:
    """Make a decorator for methods that watch reports with these names."""
    return _declare("on_effect", *events)


def _handlers_of(owner: type) -> tuple[_Handler, ...]:
    found = []
    attributes = {name: it for base in reversed(owner.__mro__) for name, it in vars(base).items()}
    for name, method in attributes.items():
        if (declared := getattr(method, "declared", None)) is not None:
            hints = get_type_hints(method)
            del hints["return"]
            *carrier, hint = hints.values()
            kinds = get_args(hint) or (hint,)
            found.append(_Handler(name, declared[0], kinds, bool(carrier), declared[1]))
    return tuple(found)


class EventObserver(Observer):
    """Base of observers with decorated methods.

    Attributes:
        needs: Part of the peer's inspection that decorated methods need: ``rounds`` (a full core),
            ``rolling`` or ``gossip``. They are called only for peers with this part; if ``needs``
            is empty, for all peers.
        swarm, peer: Swarm and peer of the present event or effect.
    """

    needs: ClassVar[Literal["", "rounds", "rolling", "gossip"]] = "rounds"
    handlers: ClassVar[tuple[_Handler, ...]] = ()
    swarm: AnySwarm
    peer: PeerId

    def __init_subclass__(cls) -> None:
        cls.handlers = _handlers_of(cls)

    def select_peer(self, swarm: AnySwarm, peer: PeerId) -> None:
        self.swarm, self.peer = swarm, peer

    @cached_property
    def _suspended(self) -> dict[tuple[PeerId, str], Iterator[None]]:
        """(peer, method name) -> suspended generator of a method that waits for the end of the
        event."""
        return {}

    def sent(self, kind: type[M], to: PeerId) -> list[M]:
        """Return the messages of a type that the core has sent to ``to`` because of the present
        event."""
        return [
            effect.message
            for effect in self.swarm.dispatcher.effects
            if type(effect) is Send and effect.peer == to and isinstance(effect.message, kind)
        ]

    @property
    def now(self) -> float:
        return self.swarm.now

    @property
    def host(self) -> Any:
        return self.swarm.hosts[self.peer]

    @property
    def trainer(self) -> Any:
        return self.host.trainer

    @property
    def clock_s(self) -> float:
        """Time of the clock of the peer's machine, in seconds."""
        return float(self.host.machine.clock_s(self.swarm.now_ns))

    @property
    def membership(self) -> MembershipInspection:
        membership: MembershipInspection = self.host.membership
        return membership

    @property
    def core(self) -> Inspection:
        return self.swarm.inspections[self.peer]

    @property
    def rolling(self) -> RollingInspection:
        rounds = self.core.rolling
        assert rounds is not None, "the checker needs rolling rounds"
        return rounds

    @property
    def gossip(self) -> GossipInspection:
        rounds = self.core.gossip
        assert rounds is not None, "the checker needs gossip rounds"
        return rounds

    def watchers(self, moment: str, kind: type) -> tuple[Watcher, ...]:
        carrier = kind
        if kind in MESSAGES:
            carrier = Send if moment == "on_effect" else Received
        around = "around_event" if moment in ("on_event", "after_event") else ""
        moments, kinds = (moment, around), {kind, carrier}
        return tuple(
            self._bind(handler, moment)
            for handler in self.handlers
            if handler.moment in moments and not kinds.isdisjoint(handler.kinds)
        )

    def _bind(self, handler: _Handler, moment: str) -> Watcher:
        name = handler.name
        needs = self.needs
        reports = handler.reports
        carried = handler.carried
        method: Callable[..., Any] = getattr(self, name)
        if handler.moment == "around_event":
            method = self._begin(name, method) if moment == "on_event" else self._resume(name)

        def see(swarm: AnySwarm, peer: PeerId, what: Any) -> None:
            if reports and what.event not in reports:
                return
            if needs and getattr(swarm.inspections.get(peer), needs, None) is None:
                return
            self.swarm, self.peer = swarm, peer
            if carried:
                method(what, what.message)
            else:
                method(what)

        return see

    def _begin(self, name: str, method: Callable[..., Iterator[None]]) -> Callable[..., None]:
        def begin(*what: Any) -> None:
            # Left over if the peer was killed during an event.
            self._suspended.pop((self.peer, name), None)
            suspended = method(*what)
            if next(suspended, name) is None:
                self._suspended[self.peer, name] = suspended

        return begin

    def _resume(self, name: str) -> Callable[..., None]:
        def resume(*what: Any) -> None:
            next(self._suspended.pop((self.peer, name), iter(())), None)

        return resume

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        self.select_peer(swarm, peer)
        self.begin_incarnation()

    def on_resume(self, swarm: AnySwarm, peer: PeerId) -> None:
        self.select_peer(swarm, peer)
        self.end_pause()

    def on_crash(self, swarm: AnySwarm, peer: PeerId) -> None:
        self.select_peer(swarm, peer)
        self.end_incarnation()

    def begin_incarnation(self) -> None:
        """Handle the start of an incarnation of the peer. Its core exists, but has handled no event
        yet."""

    def end_pause(self) -> None:
        """Handle the end of a pause. The process has handled no event since."""

    def end_incarnation(self) -> None:
        """Handle the kill of the process. Its core can still be read."""
