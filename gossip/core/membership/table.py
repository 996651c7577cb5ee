"""Local table of members, and its changes.

The *incarnation* of a peer is the number of starts of its process. The launcher raises it, and
every envelope contains it. Within an incarnation, a peer can refute accusations. The *standing*
(``Rumor.incarnation``) orders rumors by both: it is the incarnation times ``REFUTATIONS``, plus the
number of refutations in that incarnation. So a restarted peer outranks all rumors about its former
incarnation, even if it has received none of these rumors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, TypeAlias

from gossip.core.messages import PeerId, Progress, Rumor, Status
from gossip.core.settings import BUSY_S, LAST_WORDS_S, SCANNED_MEMBERS

from .suspicion import Suspicion

NEVER = float("-inf")


# upper bound of the refutations in one incarnation; a standing stays below ROUND_MAX = 2**48
REFUTATIONS = 2**24


GONE: frozenset[Status] = frozenset({"dead", "left"})
RANKS: tuple[Status, ...] = ("alive", "suspect", "dead", "left")
"""Statuses in ascending order of rank. At equal standing the status with the higher rank wins, so
all tables converge for any order of arrival."""

What: TypeAlias = Literal["joined", "skip", "unskip", "suspect", "dead", "alive_again", "left"]


def first_standing(incarnation: int) -> int:
    """Return the first standing of an incarnation."""
    return incarnation * REFUTATIONS


def incarnation_of(standing: int) -> int:
    return standing // REFUTATIONS


@dataclass(slots=True)
class Member:
    """One peer. ``skip``: reason not to wait for the peer or rely on it now; "" if there is
    none."""

    peer: PeerId
    standing: int
    control: str = ""
    bulk: str = ""
    status: Status = "alive"
    skip: str = "connecting"
    # Whether a message of the peer has arrived, or a rumor about it from a member that has met it.
    # A peer that was not met is never accused.
    met: bool = False
    progress: Progress | None = None
    heard_at: float = NEVER  # Time of the last message of the peer.
    spoken_since: float = NEVER  # Time of the first message of the peer in this incarnation.
    sending_at: float = NEVER  # Last time at which a part of a large payload from the peer arrived.
    # Until this time, the peer may be receiving a state. Messages to or from the peer may be queued
    # behind the state.
    takes_state_until: float = NEVER
    known_since: float = NEVER  # Time of the first rumor or message about this incarnation.
    # Address to which the connection leads; may be the address of a former incarnation.
    lane: str = ""
    lane_up: bool = False
    linked: bool = False  # whether there is a connection to this incarnation
    was_linked: bool = False
    stalled: bool = False  # whether the trainer of the peer makes no progress
    skip_reported: bool = False
    origin: PeerId = -1  # origin of the rumor of the present status
    suspicion: Suspicion | None = None
    gone_at: float = NEVER  # time of the death or departure of the peer
    table_sent_at: float = NEVER

    @classmethod
    def own(cls, local: PeerId, incarnation: int, control: str, bulk: str) -> Member:
        """Return the local entry at the start of ``incarnation``, with its two addresses."""
        return cls(
            local,
            first_standing(incarnation),
            control,
            bulk,
            skip="",
            met=True,
            linked=True,
            was_linked=True,
            origin=local,
        )

    @property
    def incarnation(self) -> int:
        """Incarnation of the process, as in its envelopes."""
        return incarnation_of(self.standing)

    @property
    def gone(self) -> bool:
        return self.status in GONE

    @property
    def spoken(self) -> bool:
        """Whether a message of this incarnation has arrived. If not, all information about this
        incarnation comes from other peers."""
        return self.heard_at != NEVER

    def speaks_on(self, now: float) -> bool:
        """Whether the member still sends messages although it was reported as left."""
        return self.status == "left" and self.linked and now - self.heard_at < LAST_WORDS_S

    def appear(self, now: float) -> None:
        """Record the time of the first information about this incarnation."""
        self.known_since = now

    def refute(self, standing: int) -> None:
        """Raise the standing of the local peer above ``standing``, at which it was accused."""
        self.standing = standing + 1

    def go(self, now: float) -> None:
        """Record the time of death or departure."""
        self.gone_at = now

    def rumor(self) -> Rumor:
        return Rumor(
            self.peer, self.status, self.standing, self.control, self.bulk, max(0, self.origin)
        )

    def why_skipped(self) -> str:
        if self.gone:
            return self.status
        if self.suspicion is not None and not self.suspicion.answered_since:
            return "suspect"
        if not self.linked:
            return "disconnected" if self.was_linked else "connecting"
        return "stalled" if self.stalled else ""


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a member in the local table. ``by`` is the peer that caused the change: an accuser
    or the local peer."""

    peer: PeerId
    what: What
    reason: str
    by: PeerId

    def fields(self, round_id: int) -> dict[str, Any]:
        """Return the fields of a report of this change. ``round_id`` is the round of the local
        peer."""
        why = (
            {"reason": self.reason, "by": self.by}
            if self.what in ("skip", "dead", "suspect", "left")
            else {}
        )
        return {"subject": self.peer, "round": round_id, **why}


class MemberTable:
    """All members, including the local peer, and the changes that ``drain`` has not returned
    yet."""

    def __init__(self, local: Member) -> None:
        self.local = local.peer
        self.members: dict[PeerId, Member] = {local.peer: local}
        self.changes: list[Change] = []
        self._others: list[Member] = []
        self._present = 1
        self._usable = {local.peer}  # Members that are not skipped.
        # Version of the statuses, which rises with each change. Values that depend on the statuses
        # are cached for one version.
        self.version = 0
        # peers that will not return, and peers that are starting, according to the launcher
        self.ended: set[PeerId] = set()
        self.coming: set[PeerId] = set()
        self.loaded_until = NEVER  # large payloads may be in transfer until this time

    def __len__(self) -> int:
        """Return the number of present members, including the local peer: members that were met and
        are neither dead nor have left. The formulas of SWIM and Lifeguard call this number n."""
        return self._present

    def drain(self) -> list[Change]:
        """Return the changes since the last call, in order."""
        changes, self.changes = self.changes, []
        return changes

    # --- queries ----------------------------------------------------------------------------------

    def skip_reason(self, peer: PeerId) -> str:
        """Return the reason not to wait for a peer or rely on it now; "" if there is none."""
        member = self.members.get(peer)
        return "unknown" if member is None else member.skip

    def reachable(self, peers: Collection[PeerId]) -> Collection[PeerId]:
        """Return the peers among ``peers`` that are not skipped. The local peer is never
        skipped."""
        usable = self._usable
        if usable.issuperset(peers):
            return peers
        return [peer for peer in peers if peer in usable or peer == self.local]

    def is_gone(self, peer: PeerId) -> bool:
        """Whether a peer is dead or has left. An unknown peer is not gone."""
        member = self.members.get(peer)
        return member is not None and member.status in GONE

    def has_left(self, peer: PeerId) -> bool:
        """Whether a peer has announced its departure."""
        member = self.members.get(peer)
        return member is not None and member.status == "left"

    def has_ended(self, peer: PeerId) -> bool:
        """Whether the launcher has reported that a peer will not return."""
        return peer in self.ended

    def last_message_at(self, peer: PeerId) -> float:
        """Return the time of the last message of a peer in its latest incarnation, or -inf if there
        was none."""
        member = self.members.get(peer)
        return NEVER if member is None else member.heard_at

    def incarnation_of(self, peer: PeerId) -> int:
        """Return the latest known incarnation of a peer; -1 if the peer is unknown."""
        member = self.members.get(peer)
        return -1 if member is None else member.incarnation

    def speaks_on(self, peer: PeerId, now: float) -> bool:
        """Whether a peer still sends messages although it was reported as left."""
        return self.members[peer].speaks_on(now)

    def met(self) -> tuple[PeerId, ...]:
        """Return all peers that are or were members, including the local peer."""
        return tuple([member.peer for member in self.members.values() if member.met])

    def alive(self) -> tuple[PeerId, ...]:
        """Return the members that were met and are neither dead nor have left, sorted. A suspect
        counts as alive."""
        return tuple(sorted(member.peer for member in self.present()))

    def within_reach(self) -> tuple[PeerId, ...]:
        """Return the other peers that are neither dead nor have left, and that were met or have an
        open link, sorted."""
        return tuple(
            sorted(
                member.peer
                for member in self._others
                if not member.gone and (member.met or member.linked)
            )
        )

    def note_end(self, peer: PeerId) -> None:
        """Record a report of the launcher that a peer will not return."""
        self.ended.add(peer)
        self.coming.discard(peer)

    def note_claim(self, peer: PeerId) -> None:
        """Record a report of the launcher that a peer is starting. The peer has an id, but no
        address yet."""
        self.ended.discard(peer)  # a new peer has the id of the ended peer
        self.coming.add(peer)

    def note_address(self, peer: PeerId) -> None:
        """Record that a peer has an address, so it is neither ended nor starting."""
        self.ended.discard(peer)
        self.coming.discard(peer)

    def newcomers(self, roster: Collection[PeerId]) -> set[PeerId]:
        """Return the peers outside ``roster`` that are present or starting."""
        there = {
            member.peer
            for member in self._others
            if not member.gone and not self.has_ended(member.peer)
        }
        return (there | self.coming).difference(roster)

    def note_load(self, now: float, for_s: float = 0.0) -> None:
        """Record that large payloads are in transfer to this peer or another peer. For at least
        ``for_s`` seconds, replies may be queued behind these payloads."""
        self.loaded_until = max(self.loaded_until, now + max(BUSY_S, for_s))

    def note_state(self, peer: PeerId, until: float) -> None:
        """Record that ``peer``, which may be the local peer, may be receiving a state until the
        given time."""
        if (member := self.members.get(peer)) is not None:
            member.takes_state_until = until

    def is_behind_state(self, peer: PeerId, now: float) -> bool:
        """Whether messages to or from a peer may be queued behind a state. The progress of a
        transfer does not show this in time: the first chunk may take longer than a probe, and is
        reported only when it has arrived."""
        taking = self.members[self.local], self.members[peer]
        return any(now <= member.takes_state_until for member in taking)

    def forget_load(self) -> None:
        """Record that no large payloads are in transfer any longer."""
        self.loaded_until = NEVER

    # --- changes ----------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """Add a new member."""
        assert member.peer not in self.members, f"{member} is no new member"
        self.members[member.peer] = member
        self._others.append(member)

    def place(self, member: Member, status: Status, met: bool) -> None:
        """Set ``status`` and ``met`` of a member, and update the number of present members. No
        other method sets these two fields."""
        self.version += 1
        self._present -= member.met and not member.gone
        member.status, member.met = status, met
        self._present += member.met and not member.gone

    def present(self) -> Iterator[Member]:
        return (m for m in self.members.values() if m.met and not m.gone)

    def others(self) -> Iterator[Member]:
        return iter(self._others)

    def sample(self, rng: Random, most: int, fits: Callable[[Member], bool]) -> list[Member]:
        """Return at most ``most`` random members, except the local peer, for which ``fits`` is
        True. In a large run, a few random tries usually find them without a scan of all members."""
        if len(self._others) > SCANNED_MEMBERS:
            found: dict[PeerId, Member] = {}
            for _ in range(4 * most + 16):
                if len(found) == most:
                    return list(found.values())
                member = rng.choice(self._others)
                if fits(member):
                    found[member.peer] = member
        able = [member for member in self._others if fits(member)]
        return rng.sample(able, min(most, len(able)))

    def note(self, peer: PeerId, what: What, reason: str = "", by: PeerId | None = None) -> None:
        self.changes.append(Change(peer, what, reason, self.local if by is None else by))

    def settle(self, member: Member, by: PeerId | None = None) -> None:
        """Update ``skip`` of a member, and record when the member becomes usable or unusable.

        A member that is connecting or has left is not recorded as unusable.
        """
        member.skip = member.why_skipped()
        if not member.skip:
            self._usable.add(member.peer)
            if member.skip_reported:
                self.note(member.peer, "unskip", by=by)
            member.skip_reported = False
            return
        self._usable.discard(member.peer)
        if not member.skip_reported and member.skip not in ("connecting", "left"):
            member.skip_reported = True
            self.note(member.peer, "skip", member.skip, by)
