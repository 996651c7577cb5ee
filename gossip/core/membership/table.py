"""The table of members as one peer sees it, and what changed in it.

A peer's *incarnation* counts the lives of its process: its launcher raises it, every envelope
carries it. Within a life a peer must also be able to contradict an accusation. Both are ordered by
its *standing*, the number in a ``Rumor``: incarnation times ``REFUTATIONS`` plus the refutations in
that life. So a restarted peer outranks whatever was said of its former life without
having to know it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, TypeAlias

from gossip.core.messages import PeerId, Progress, Rumor, Status

from .suspicion import Suspicion

NEVER = float("-inf")
SPEAKS_ON_S = 2.0
"""Longest silence, in seconds, after which a peer that was reported as left still counts as
present, while its link is up. A peer that leaves closes its links."""

LOADED_S = 2.0
"""How old the news may be that large payloads move: they come one after the other,
with pauses in between."""

REFUTATIONS = 2**24  # in one life; lives and refutations together stay below ROUND_MAX = 2**48

LARGE = 64
"""Members from which on nobody is looked for among all of them."""

GONE: frozenset[Status] = frozenset({"dead", "left"})
RANK: dict[Status, int] = {"alive": 0, "suspect": 1, "dead": 2, "left": 3}
"""At equal standing the higher rank prevails, so that all tables end up alike whatever the
order of arrival."""

What: TypeAlias = Literal["joined", "skip", "unskip", "suspect", "dead", "alive_again", "left"]


def first_standing(incarnation: int) -> int:
    """The standing with which a life begins."""
    return incarnation * REFUTATIONS


def incarnation_of(standing: int) -> int:
    return standing // REFUTATIONS


@dataclass(slots=True)
class Member:
    """One peer. ``skip`` says why it is not to be waited for or relied on now;
    "" when it is usable."""

    peer: PeerId
    standing: int
    control: str = ""
    bulk: str = ""
    status: Status = "alive"
    skip: str = "connecting"
    # it, or a member that knows it, has spoken; until then it is an address in a list,
    # and accused of nothing
    met: bool = False
    progress: Progress | None = None
    heard_at: float = NEVER  # last message of its own
    spoken_since: float = NEVER  # the first one in this life
    sending_at: float = NEVER  # when some of a large payload came last
    # it takes a state until then, or may: from us, or the local peer from others
    takes_state_until: float = NEVER
    known_since: float = NEVER  # when this life of it was learnt of
    lane: str = ""  # where the connection to it leads: maybe to the address of its former life
    lane_up: bool = False
    linked: bool = False  # to this life of it
    was_linked: bool = False
    stalled: bool = False  # its trainer makes no progress
    skip_told: bool = False
    origin: PeerId = -1  # who said the present status first
    suspicion: Suspicion | None = None
    gone_at: float = NEVER  # when it died or left
    told_table_at: float = NEVER

    @classmethod
    def own(cls, local: PeerId, incarnation: int, control: str, bulk: str) -> Member:
        """The local peer itself, as its life ``incarnation`` begins at these two addresses."""
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
        """Incarnation of its process, as in its envelopes."""
        return incarnation_of(self.standing)

    @property
    def gone(self) -> bool:
        return self.status in GONE

    @property
    def spoken(self) -> bool:
        """Whether this life of it has; what we know is else what others say."""
        return self.heard_at != NEVER

    def speaks_on(self, now: float) -> bool:
        """Whether it is there, though it is said to have left."""
        return self.status == "left" and self.linked and now - self.heard_at < SPEAKS_ON_S

    def appear(self, now: float) -> None:
        """This life of it is known of from now on."""
        self.known_since = now

    def refute(self, standing: int) -> None:
        """Raise the standing of the local peer above ``standing``, at which it was accused."""
        self.standing = standing + 1

    def go(self, now: float) -> None:
        """It dies or leaves now."""
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
    """Something about a member became different here. ``by`` is who says so: an accuser,
    or the local peer."""

    peer: PeerId
    what: What
    reason: str
    by: PeerId

    def fields(self, round_id: int) -> dict[str, Any]:
        """Return the fields of a report of this change. ``round_id``: the round of the local
        peer."""
        why = (
            {"reason": self.reason, "by": self.by}
            if self.what in ("skip", "dead", "suspect", "left")
            else {}
        )
        return {"subject": self.peer, "round": round_id, **why}


class MemberTable:
    """All members, the local peer among them, and the changes that nobody has been told of yet."""

    def __init__(self, local: Member) -> None:
        self.local = local.peer
        self.members: dict[PeerId, Member] = {local.peer: local}
        self.changes: list[Change] = []
        self._others: list[Member] = []
        self._present = 1
        # of what ``gone`` says of all members: what follows from it is made anew only
        # when this changes
        self.version = 0
        # for good, and who is on its way: by the word of whoever starts them
        self._ended: set[PeerId] = set()
        self.coming: set[PeerId] = set()
        self.loaded_until = NEVER  # large payloads move until then, or may

    def __len__(self) -> int:
        """Members that were met and are neither dead nor left, the local one included:
        the n of all formulas."""
        return self._present

    def drain(self) -> list[Change]:
        """The changes since the last call, in order."""
        changes, self.changes = self.changes, []
        return changes

    # --- what the rest of the core reads ----------------------------------------------------------

    def skip_reason(self, peer: PeerId) -> str:
        """Why not to wait for or rely on a peer now; "" when it is usable."""
        member = self.members.get(peer)
        return "unknown" if member is None else member.skip

    def is_gone(self, peer: PeerId) -> bool:
        """Known to be dead, or to have left. Of a peer never met nothing is known."""
        member = self.members.get(peer)
        return member is not None and member.status in GONE

    def has_left(self, peer: PeerId) -> bool:
        """Known to have said goodbye."""
        member = self.members.get(peer)
        return member is not None and member.status == "left"

    def has_ended(self, peer: PeerId) -> bool:
        """Known not to come back: whoever starts the peers says so,
        which sees their processes end."""
        return peer in self._ended

    def last_message_at(self, peer: PeerId) -> float:
        """When a message of its own came last, in its latest life; -inf: never."""
        member = self.members.get(peer)
        return NEVER if member is None else member.heard_at

    def incarnation_of(self, peer: PeerId) -> int:
        """Return the latest known incarnation of a peer; -1 if none is known."""
        member = self.members.get(peer)
        return -1 if member is None else member.incarnation

    def speaks_on(self, peer: PeerId, now: float) -> bool:
        """Whether a peer that is said to have left is there all the same."""
        return self.members[peer].speaks_on(now)

    def met(self) -> tuple[PeerId, ...]:
        """Whoever is known to be there, or to have been, the local peer included: it, or a member
        that knows it, has spoken."""
        return tuple([member.peer for member in self.members.values() if member.met])

    def alive(self) -> tuple[PeerId, ...]:
        """Members that were met and are neither dead nor left, sorted;
        a suspect is alive until it is dead."""
        return tuple(sorted(member.peer for member in self.present()))

    def within_reach(self) -> tuple[PeerId, ...]:
        """Others, sorted, who are neither dead nor left,
        and were met or have a connection that stands."""
        return tuple(
            sorted(
                member.peer
                for member in self._others
                if not member.gone and (member.met or member.linked)
            )
        )

    def note_end(self, peer: PeerId) -> None:
        """Whoever starts the peers says so."""
        self._ended.add(peer)
        self.coming.discard(peer)

    def note_claim(self, peer: PeerId) -> None:
        """Whoever starts the peers says that it is on its way: it has its id,
        and no address yet."""
        self._ended.discard(peer)  # its id was given to another
        self.coming.add(peer)

    def note_address(self, peer: PeerId) -> None:
        """It has an address."""
        self._ended.discard(peer)
        self.coming.discard(peer)

    def newcomers(self, roster: Collection[PeerId]) -> set[PeerId]:
        """Return the peers outside ``roster`` that are present or on their way."""
        there = {
            member.peer
            for member in self._others
            if not member.gone and not self.has_ended(member.peer)
        }
        return (there | self.coming).difference(roster)

    def note_load(self, now: float, for_s: float = 0.0) -> None:
        """Large payloads move, here or elsewhere: answers may wait behind them, for so long at
        least."""
        self.loaded_until = max(self.loaded_until, now + max(LOADED_S, for_s))

    def note_state(self, peer: PeerId, until: float) -> None:
        """A state, or a piece of one, is on its way to this peer, until then at the latest: from
        us; to us where it is the local one."""
        if (member := self.members.get(peer)) is not None:
            member.takes_state_until = until

    def is_behind_state(self, peer: PeerId, now: float) -> bool:
        """Whether what is said between us and this peer may wait behind a state. Its first chunk
        may take longer than a probe, and of that nobody hears before it is there."""
        taking = self.members[self.local], self.members[peer]
        return any(now <= member.takes_state_until for member in taking)

    def forget_load(self) -> None:
        """Payloads were expected to take time, and do not."""
        self.loaded_until = NEVER

    # --- what changes -----------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """A new one, that nobody has met yet."""
        assert member.peer not in self.members, f"{member} is no new member"
        self.members[member.peer] = member
        self._others.append(member)

    def place(self, member: Member, status: Status, met: bool) -> None:
        """The only way to change a member's ``status`` or ``met``:
        those present are counted here."""
        self.version += 1
        self._present -= member.met and not member.gone
        member.status, member.met = status, met
        self._present += member.met and not member.gone

    def present(self) -> Iterator[Member]:
        return (m for m in self.members.values() if m.met and not m.gone)

    def others(self) -> Iterator[Member]:
        return iter(self._others)

    def sample(self, rng: Random, most: int, fits: Callable[[Member], bool]) -> list[Member]:
        """At most so many others that fit, at random. In a large swarm a few draws find them,
        without a look at everybody."""
        if len(self._others) > LARGE:
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
        """Brings ``skip`` up to date and notes when a member becomes usable or stops being so.

        A peer that is only being connected to, or that left of its own will,
        is nothing to make a noise about.
        """
        member.skip = member.why_skipped()
        if not member.skip:
            if member.skip_told:
                self.note(member.peer, "unskip", by=by)
            member.skip_told = False
        elif not member.skip_told and member.skip not in ("connecting", "left"):
            member.skip_told = True
            self.note(member.peer, "skip", member.skip, by)
