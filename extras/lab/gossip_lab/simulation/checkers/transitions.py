"""Log of every change in a table of members, including changes that are overwritten before the core
has handled the event.

A watched member gets a class of the same layout, which records changes of its attributes. The
member behaves as before.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

from gossip.core import Event, Member, MembershipInspection, PeerId, Status, incarnation_of
from gossip_lab.simulation.world import AnySwarm

from .base import Checker

NOTED = frozenset({"standing", "status", "control", "bulk"})


class TableTransition(NamedTuple):
    """Change of one attribute of one row. The other fields are those of the row after this
    change."""

    subject: PeerId
    field: str  # one of ``NOTED``, or "enlisted" for a new row
    before: Any
    standing: int
    status: Status
    control: str
    bulk: str

    @property
    def incarnation(self) -> int:
        return incarnation_of(self.standing)


def _transition(member: Member, field: str, before: Any) -> TableTransition:
    return TableTransition(
        member.peer, field, before, member.standing, member.status, member.control, member.bulk
    )


class _Watched(Member):
    __slots__ = ()
    sinks: ClassVar[list[list[TableTransition]]] = []

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in NOTED:
            object.__setattr__(self, name, value)
            return
        before = getattr(self, name, None)  # None in an unfinished copy
        object.__setattr__(self, name, value)
        if before is not None and before != value:
            for sink in self.sinks:
                sink.append(_transition(self, name, before))


class TableWatch:
    """Collects the transitions of one membership from now on. Any number of watches may collect
    from the same one.

    There are new transitions if ``sink`` is not empty or the length of ``members`` differs from
    ``count``.
    """

    def __init__(self, membership: MembershipInspection) -> None:
        self.members = membership.members
        self.sink: list[TableTransition] = []
        self.count = 0
        self._known: dict[PeerId, Member] = {}
        present = type(membership.me)
        if issubclass(present, _Watched):
            self._cls: type[_Watched] = present
        else:
            self._cls = type("_Watched", (_Watched,), {"__slots__": (), "sinks": []})
        self._cls.sinks.append(self.sink)
        self._add_members()

    def _add_members(self) -> None:
        for peer, member in self.members.items():
            if self._known.get(peer) is not member:
                self._known[peer] = member
                if type(member) is not self._cls:
                    object.__setattr__(member, "__class__", self._cls)
                self.sink.append(_transition(member, "enlisted", None))
        self.count = len(self._known)

    def fresh(self) -> list[TableTransition]:
        """Return the transitions since the last call, in order. A new row is reported in its state
        at the end of its event."""
        if len(self.members) != self.count:
            self._add_members()
        if not self.sink:
            return []
        noted = self.sink.copy()
        self.sink.clear()  # the class keeps appending to this list
        return noted


class TableChecker(Checker):
    """Judges transitions, which its panel collects.

    Attributes:
        fields: Fields whose changes it judges; empty means all.
        cause: Event that the peer handled; None if it crashed during the event.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    cause: Event | None

    @abstractmethod
    def judge(self, transition: TableTransition) -> None:
        """Judge a change of a row."""

    def is_invented(self, subject: PeerId) -> bool:
        """Whether an attacker may have invented the incarnation of ``subject`` that the peer has
        recorded without having received a message from it."""
        if not self.circumstances.invented_lives or self.peer == subject:
            return False
        return not self.membership.members[subject].spoken

    def lives_of(self, subject: PeerId) -> dict[int, MembershipInspection]:
        """Return the memberships of a peer, by incarnation. A folder of addresses may name the last
        one before it runs."""
        lives = (*self.swarm.past, self.swarm.hosts[subject])
        return {
            host.incarnation: host.membership
            for host in lives
            if host.peer == subject and host.membership is not None
        }

    def is_alive(self, subject: PeerId, incarnation: int) -> bool:
        """Whether exactly this incarnation of a peer runs, and takes part."""
        host = self.swarm.hosts[subject]
        if not host.running or host.incarnation != incarnation or host.membership is None:
            return False
        return bool(host.membership.me.status == "alive")

    def is_false_death(self, transition: TableTransition) -> bool:
        """Whether the peer declares another one dead although the incarnation of that number
        runs."""
        subject = transition.subject
        if transition.status != "dead" or subject == self.peer:
            return False
        return self.is_alive(subject, transition.incarnation)


def watch_life(watches: dict[PeerId, TableWatch], swarm: AnySwarm, peer: PeerId) -> None:
    """Watch the table of a peer that begins an incarnation, if it has one."""
    membership = swarm.hosts[peer].membership
    if membership is not None:
        watches[peer] = TableWatch(membership)
    else:
        watches.pop(peer, None)
