"""A server that tells different peers different results of one turn is found out by what they
say it handed them.

Nobody can prove to another what it was sent, and what is handed on in a server's name may be
somebody else's lie. So each peer remembers what servers have handed it themselves. Once it hears of
another result of the same turn it says, when it serves next, what it was given (a ``Accusation``
with a ``turn``), and so does whoever reads that and was given something else. Who sees that others
have another history behind a round says it, too: each side of a fork holds what it was told, and
never hears of the other's. When more than f peers state one content and more than f another, at
least one of each is honest, so the server has said both: that is proof. A turn is of one life, one
shard, one attempt and one history: an honest server makes one result in it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from hashlib import blake2b
from struct import pack
from typing import Any, TypeAlias

from gossip.core.messages import DIGEST_BYTES, Accusation, Commit, PeerId

from .chain import header_bytes

TURNS_KEPT = 64
"""Turns of one server that a peer remembers what it was handed in, and results that it remembers of
each who handed them over."""

STATED_MAX = 4
"""Turns of one server of which one peer's word is kept: nobody can push out what others say."""

SAID_MAX = 8
"""Most turns, of all servers together, for which the statements of one peer are kept. This bounds
their size in every state."""

PROVEN_MAX = 16
MOST_ROWS = 2**16
NONE: frozenset[bytes] = frozenset()
HEX = frozenset("0123456789abcdef")

# server, round, shard, attempt, H of the round before
Place: TypeAlias = tuple[PeerId, int, int, int, bytes]
Turn: TypeAlias = tuple[int, bytes]  # round and turn


class EquivocationDetector:
    """Statements of peers in commits: a pure function of the commits, as trust is."""

    def __init__(self, f: int) -> None:
        self.f, self.window = f, 64 + 16 * f  # rounds, as of ``TrustTable``
        # server and who says so
        self._stated: dict[tuple[PeerId, PeerId], OrderedDict[Turn, bytes]] = {}
        self._proven: OrderedDict[tuple[PeerId, Turn], None] = OrderedDict()

    def wants(self, by: PeerId, accusation: Accusation) -> bool:
        """Whether it is of use that this peer states that: not known yet, not proven yet, and not
        older than what is."""
        turn, known = (
            (accusation.round_id, accusation.turn),
            self._stated.get((accusation.peer, by), OrderedDict()),
        )
        late = len(known) >= STATED_MAX and turn < min(known)
        late = late or (
            len(said := self._accused_by(by)) >= SAID_MAX and (*turn, accusation.peer) < min(said)
        )
        return turn not in known and not late and (accusation.peer, turn) not in self._proven

    def contents(self) -> dict[tuple[PeerId, Turn], set[bytes]]:
        """Return all stated contents, by server and turn."""
        found: dict[tuple[PeerId, Turn], set[bytes]] = {}
        for (server, _), known in self._stated.items():
            for turn, content in known.items():
                found.setdefault((server, turn), set()).add(content)
        return found

    def observe_round(self, commits: Sequence[Commit]) -> list[PeerId]:
        """Learns from the commits of one round. Returns who is proven to have said two things in
        one turn, once for each."""
        proven = []
        for commit in commits:
            oldest = commit.round_id - self.window
            for accusation in commit.accusations:
                of_use = (
                    accusation.turn
                    and accusation.peer != commit.server
                    and accusation.round_id >= oldest
                )
                if of_use and self.wants(commit.server, accusation):
                    self._state(commit.server, accusation)
                    if self._is_proof(accusation):
                        self._proven[accusation.peer, (accusation.round_id, accusation.turn)] = None
                        proven.append(accusation.peer)
            for key, known in list(self._stated.items()):
                if known and min(known)[0] >= oldest:
                    continue  # nothing of it is too old
                kept = OrderedDict(
                    (turn, content) for turn, content in known.items() if turn[0] >= oldest
                )
                self._stated[key] = kept
                if not kept:
                    del self._stated[key]
        while len(self._proven) > PROVEN_MAX:
            self._proven.popitem(last=False)
        return proven

    def _accused_by(self, by: PeerId) -> list[tuple[int, bytes, PeerId]]:
        """The turns of which that peer's word is kept, and whose they are."""
        return [
            (*turn, server)
            for (server, peer), known in self._stated.items()
            if peer == by
            for turn in known
        ]

    def _state(self, by: PeerId, accusation: Accusation) -> None:
        known = self._stated.setdefault((accusation.peer, by), OrderedDict())
        known[accusation.round_id, accusation.turn] = accusation.content
        while len(known) > STATED_MAX:
            del known[min(known)]
        if len(said := self._accused_by(by)) > SAID_MAX:
            at, turn, server = min(said)
            del self._stated[server, by][at, turn]

    def _is_proof(self, accusation: Accusation) -> bool:
        """Whether two contents have more than f voices each."""
        voices: dict[bytes, int] = {}
        for (server, _), known in self._stated.items():
            content = (
                known.get((accusation.round_id, accusation.turn))
                if server == accusation.peer
                else None
            )
            if content is not None:
                voices[content] = voices.get(content, 0) + 1
        return sum([count > self.f for count in voices.values()]) > 1

    # --- as data ----------------------------------------------------------------------------------

    def pack(self) -> tuple[Any, ...]:
        """Plain data; digests as hexadecimal text."""
        stated = [
            (server, by, at, turn.hex(), content.hex())
            for (server, by), known in sorted(self._stated.items())
            for (at, turn), content in sorted(known.items())
        ]
        return tuple(stated), tuple([(peer, at, turn.hex()) for peer, (at, turn) in self._proven])

    def unpack(self, packed: Any) -> None:
        """Takes over what ``pack`` gave elsewhere. Raises ``ValueError``, and changes nothing,
        when it is not that."""
        if not _are_rows(packed, 2) or not all(
            isinstance(rows, tuple | list) and len(rows) <= MOST_ROWS for rows in packed
        ):
            raise ValueError("receipts: not two tables")
        stated: dict[tuple[PeerId, PeerId], OrderedDict[Turn, bytes]] = {}
        for row in packed[0]:
            if not _are_rows(row, 5) or not _are_counts(row[:3]) or not _are_digests(row[3:]):
                raise ValueError("receipts: not what somebody was handed")
            known = stated.setdefault((row[0], row[1]), OrderedDict())
            known[row[2], bytes.fromhex(row[3])] = bytes.fromhex(row[4])
            if len(known) > STATED_MAX:
                raise ValueError("receipts: one peer states too much")
        proven: OrderedDict[tuple[PeerId, Turn], None] = OrderedDict()
        for row in packed[1]:
            if (
                not _are_rows(row, 3)
                or not _are_counts(row[:2])
                or not _are_digests(row[2:])
                or len(proven) >= PROVEN_MAX
            ):
                raise ValueError("receipts: no turn that is proven")
            proven[row[0], (row[1], bytes.fromhex(row[2]))] = None
        self._stated, self._proven = stated, proven


class EquivocationWitness:
    """Results that this peer received, and their senders. A peer that invents turns displaces only
    its own entries, oldest rounds first, and never those of another peer. ``header`` returns the
    canonical bytes of a commit."""

    def __init__(
        self,
        local: PeerId,
        equivocations: EquivocationDetector,
        header: Callable[[Commit], bytes] = header_bytes,
    ) -> None:
        self.local, self.equivocations, self.header = local, equivocations, header
        # by the server itself, the first in its turn
        self._handed: dict[PeerId, dict[Place, Accusation]] = {}
        # contents, with their rounds, that each has handed over
        self._heard: dict[PeerId, dict[tuple[Place, bytes], int]] = {}

    def saw(self, sender: PeerId, incarnation: int, commit: Commit) -> None:
        """``sender`` has handed over that commit, in the life ``incarnation``.
        Taken or not, it was said."""
        place = commit.server, commit.round_id, commit.shard, commit.made_at, commit.parent
        content = _hash(self.header(commit))
        heard = self._heard.setdefault(sender, {})
        heard[place, content] = commit.round_id
        while len(heard) > TURNS_KEPT:
            del heard[min(heard, key=heard.__getitem__)]
        handed = self._handed.setdefault(sender, {}) if sender == commit.server else {}
        if sender == commit.server and place not in handed:
            turn = _hash(pack(">3q", incarnation, commit.shard, commit.made_at) + commit.parent)
            handed[place] = Accusation(sender, commit.round_id, turn=turn, content=content)
            while len(handed) > TURNS_KEPT:
                del handed[min(handed, key=lambda place: place[1])]

    def statements(self, round_id: int, forked: Container[int] = ()) -> list[Accusation]:
        """Return the disputed accusations that this peer has not stated yet, the latest last.
        ``round_id`` bounds their age. ``forked``: rounds after which other peers were seen with
        another history, though this peer may not have received their result."""
        oldest, apart, first = (
            round_id - self.equivocations.window,
            set[Place](),
            dict[Place, bytes](),
        )
        for heard in self._heard.values():
            for place, content in heard:
                if first.setdefault(place, content) != content:
                    apart.add(place)
        handed = [
            item
            for known in self._handed.values()
            for item in known.items()
            if item[1].round_id >= oldest
        ]
        stated = self.equivocations.contents()
        disputed = [
            c
            for place, c in handed
            if place in apart
            or place[1] in forked
            or stated.get((c.peer, (c.round_id, c.turn)), NONE) - {c.content}
        ]
        return sorted(
            [c for c in disputed if self.equivocations.wants(self.local, c)],
            key=lambda accusation: accusation.round_id,
        )


def _hash(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


def _are_rows(value: Any, length: int) -> bool:
    return isinstance(value, tuple | list) and len(value) == length


def _are_counts(values: Sequence[Any]) -> bool:
    return all(
        isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values
    )


def _are_digests(values: Sequence[Any]) -> bool:
    return all(
        isinstance(value, str) and len(value) == 2 * DIGEST_BYTES and HEX.issuperset(value)
        for value in values
    )
