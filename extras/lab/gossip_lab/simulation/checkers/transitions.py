"""Log of all changes in a membership table, including changes that are overwritten within the same
event.

The class of a watched member is replaced by a subclass that records changes of attributes. The
member behaves as before.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

from gossip.core import Event, Member, PeerId, Status, incarnation_of
from gossip_lab.inspection import MembershipInspection

from .base import Checker

NOTED = frozenset({"standing", "status", "control", "bulk"})


class TableTransition(NamedTuple):
    """Change of one attribute of a table's row. ``before`` is the old value; all other values are
    those of the row after the change."""

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
        before = getattr(self, name, None)  # None while a copy is being created
        object.__setattr__(self, name, value)
        if before is not None and before != value:
            for sink in self.sinks:
                sink.append(_transition(self, name, before))


class TableWatch:
    """Collects the changes of one membership table from now on. Several watches may collect from
    the same table."""

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
        """Return the changes since the last call, in order. For a new row, its values at the end of
        the event are reported."""
        if len(self.members) != self.count:
            self._add_members()
        if not self.sink:
            return []
        noted = self.sink.copy()
        self.sink.clear()  # cleared in place, because the class appends to this list
        return noted


class TableChecker(Checker):
    """Base of the checkers that judge changes in membership tables. The suite collects the changes.

    Attributes:
        fields: Names of the attributes with changes to judge; empty means all.
        cause: Event that caused the change; None if the peer crashed during the event.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    cause: Event | None

    @abstractmethod
    def judge(self, transition: TableTransition) -> None:
        """Judge one change."""

    def is_invented(self, subject: PeerId) -> bool:
        """Whether an attacker may have invented the recorded incarnation of ``subject``: the peer
        has received no message from it."""
        if not self.conditions.invented_incarnations or self.peer == subject:
            return False
        return not self.membership.members[subject].spoken

    def incarnations_of(self, subject: PeerId) -> dict[int, MembershipInspection]:
        """Return the memberships of a peer; the key is the incarnation. The last incarnation is
        included even before it runs, because the folder of addresses may name it already."""
        lives = (*self.swarm.past, self.swarm.hosts[subject])
        return {
            host.incarnation: host.membership
            for host in lives
            if host.peer == subject and host.membership is not None
        }

    def is_alive(self, subject: PeerId, incarnation: int) -> bool:
        """Whether this incarnation of a peer runs, and is alive in its own table."""
        host = self.swarm.hosts[subject]
        if not host.running or host.incarnation != incarnation or host.membership is None:
            return False
        return bool(host.membership.me.status == "alive")

    def is_false_death(self, transition: TableTransition) -> bool:
        """Whether the peer declares another peer dead although the declared incarnation runs."""
        subject = transition.subject
        if transition.status != "dead" or subject == self.peer:
            return False
        return self.is_alive(subject, transition.incarnation)
