"""Equivocation: a server sends different results of one attempt to different peers. Accusations in
commits prove an equivocation.

A turn is one attempt of one incarnation of a server, for a given shard and history. An honest
server makes only one result in a turn. No peer can prove to another peer which messages it has
received, and a Byzantine peer may forward a forged result in the name of a server. So each peer
stores the results that it has received directly from their servers. If a peer receives a second
result of the same turn, it reports in its next commit which result the server has sent to it
(``Accusation`` with a ``turn``). A peer that reads this accusation, but has received another result
from the server, reports its own result in the same way. A peer also reports its result of a round
if other peers report another history after this round. This is necessary because the two sides of a
fork do not exchange results. If more than f peers report one content and more than f peers report
another content, at least one peer of each group is honest. This proves that the server has sent
both results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from hashlib import blake2b
from struct import pack
from typing import Any, TypeAlias

from gossip.core.latest import Latest
from gossip.core.messages import DIGEST_BYTES, Accusation, Commit, PeerId
from gossip.core.settings import (
    ACCUSED_TURNS,
    ACCUSED_TURNS_BY_PEER,
    PROVEN_TURNS,
    TURNS_KEPT,
    accusation_rounds,
)

from .chain import header_bytes
from .unpacking import COUNT, digest, row, rows, unpacked

NONE: frozenset[bytes] = frozenset()

# server, round, shard, attempt, H of the previous round
Place: TypeAlias = tuple[PeerId, int, int, int, bytes]
Turn: TypeAlias = tuple[int, bytes, PeerId]  # the round, the digest of the turn, and the server

_PACKED = row(
    rows(row(COUNT, COUNT, COUNT, digest, digest)),
    rows(row(COUNT, COUNT, digest), most=PROVEN_TURNS),
)


def turn_of(accusation: Accusation) -> Turn:
    return accusation.round_id, accusation.turn, accusation.peer


class EquivocationDetector:
    """Accusations of equivocation in commits. Like the trust table, this table is a pure function
    of the commits."""

    def __init__(self, f: int) -> None:
        self.f, self.window = f, accusation_rounds(f)
        # accused content of each turn, by turn and accuser
        self._stated: dict[tuple[Turn, PeerId], bytes] = {}
        self._proven: Latest[Turn, None] = Latest(PROVEN_TURNS)

    def wants(self, by: PeerId, accusation: Accusation) -> bool:
        """Whether an accusation by the peer ``by`` is new evidence: it is not stored, its turn is
        not proven, and the store of this peer is not full of later accusations."""
        turn = turn_of(accusation)
        stores = (
            (self._turns(by, accusation.peer), ACCUSED_TURNS),
            (self._turns(by), ACCUSED_TURNS_BY_PEER),
        )
        late = any(len(known) >= most and turn < known[0] for known, most in stores)
        return (turn, by) not in self._stated and not late and turn not in self._proven

    def contents(self) -> dict[Turn, set[bytes]]:
        """Return all accused contents, by turn."""
        found: dict[Turn, set[bytes]] = {}
        for (turn, _), content in self._stated.items():
            found.setdefault(turn, set()).add(content)
        return found

    def observe_round(self, commits: Sequence[Commit]) -> list[PeerId]:
        """Record the accusations in the commits of one round. Return the servers that these
        accusations prove to have sent two results in one turn. A server is listed once for each
        such turn."""
        proven = []
        for commit in commits:
            oldest = commit.round_id - self.window
            for accusation in commit.accusations:
                counts = (
                    accusation.turn
                    and accusation.peer != commit.server
                    and accusation.round_id >= oldest
                )
                if counts and self.wants(commit.server, accusation):
                    self._state(commit.server, accusation)
                    if self._is_proof(turn := turn_of(accusation)):
                        self._proven[turn] = None
                        proven.append(accusation.peer)
            self._stated = {key: each for key, each in self._stated.items() if key[0][0] >= oldest}
        return proven

    def _turns(self, by: PeerId, server: PeerId | None = None) -> list[Turn]:
        """Return the turns in the stored accusations by a peer, oldest first. With ``server``,
        return only the turns of this server."""
        return sorted([t for t, peer in self._stated if peer == by and server in (None, t[2])])

    def _state(self, by: PeerId, accusation: Accusation) -> None:
        self._stated[turn_of(accusation), by] = accusation.content
        for server, most in ((accusation.peer, ACCUSED_TURNS), (None, ACCUSED_TURNS_BY_PEER)):
            if len(known := self._turns(by, server)) > most:
                del self._stated[known[0], by]

    def _is_proof(self, turn: Turn) -> bool:
        """Whether at least two different contents of the turn have each been reported by more than
        f peers."""
        voices = Counter([content for (of, _), content in self._stated.items() if of == turn])
        return sum([count > self.f for count in voices.values()]) > 1

    # --- as data ----------------------------------------------------------------------------------

    def pack(self) -> tuple[Any, ...]:
        """Return the table as plain tuples, with digests as hexadecimal text."""
        stated = [
            (server, by, at, turn.hex(), content.hex())
            for ((at, turn, server), by), content in self._stated.items()
        ]
        proven = [(server, at, turn.hex()) for at, turn, server in self._proven]
        return tuple(sorted(stated)), tuple(proven)

    def unpack(self, packed: Any) -> None:
        """Load the result of another peer's ``pack``. Raises ``ValueError``, and changes nothing,
        if the data is invalid."""
        stated, proven = unpacked("equivocations", _PACKED, packed)
        if max(Counter([row[:2] for row in stated]).values(), default=0) > ACCUSED_TURNS:
            raise ValueError("equivocations: too many accusations by one peer")
        self._stated = {((at, t, server), by): content for server, by, at, t, content in stated}
        self._proven = Latest(PROVEN_TURNS)
        self._proven.update({(at, turn, server): None for server, at, turn in proven})


class EquivocationWitness:
    """Results that the local peer has received, by sender. A peer that invents turns displaces only
    its own entries, oldest first. ``header`` returns the canonical bytes of a commit."""

    def __init__(
        self,
        local: PeerId,
        header: Callable[[Commit], bytes] = header_bytes,
    ) -> None:
        self.local, self.header = local, header
        # first result of each turn that its server has sent to this peer
        self._handed: dict[PeerId, dict[Place, Accusation]] = {}
        # by sender: the received contents, with their rounds
        self._heard: dict[PeerId, dict[tuple[Place, bytes], int]] = {}

    def saw(self, sender: PeerId, incarnation: int, commit: Commit) -> None:
        """Record a commit from ``incarnation`` of ``sender``, whether or not it is accepted."""
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

    def statements(
        self, equivocations: EquivocationDetector, round_id: int, forked: Container[int] = ()
    ) -> list[Accusation]:
        """Return the accusations about disputed turns that the local peer has not made yet, the
        latest last. ``equivocations``: accusations in the history. Accusations that are too old in
        ``round_id`` are omitted. ``forked``: rounds after which other peers have another history.
        The results of that history may not have arrived at this peer."""
        oldest, apart, first = (
            round_id - equivocations.window,
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
        stated = equivocations.contents()
        disputed = [
            c
            for place, c in handed
            if place in apart or place[1] in forked or stated.get(turn_of(c), NONE) - {c.content}
        ]
        return sorted(
            [c for c in disputed if equivocations.wants(self.local, c)],
            key=lambda accusation: accusation.round_id,
        )


def _hash(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()
