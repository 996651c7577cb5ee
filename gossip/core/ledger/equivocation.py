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

from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from hashlib import blake2b
from struct import pack
from typing import Any, TypeAlias

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
Turn: TypeAlias = tuple[int, bytes]  # the round, and the digest of the turn

_PACKED = row(
    rows(row(COUNT, COUNT, COUNT, digest, digest)),
    rows(row(COUNT, COUNT, digest), most=PROVEN_TURNS),
)


class EquivocationDetector:
    """Accusations of equivocation in commits. Like the trust table, this table is a pure function
    of the commits."""

    def __init__(self, f: int) -> None:
        self.f, self.window = f, accusation_rounds(f)
        # accused content of each turn, by server and accuser
        self._stated: dict[tuple[PeerId, PeerId], OrderedDict[Turn, bytes]] = {}
        self._proven: OrderedDict[tuple[PeerId, Turn], None] = OrderedDict()

    def wants(self, by: PeerId, accusation: Accusation) -> bool:
        """Whether an accusation by the peer ``by`` is new evidence: it is not stored, its turn is
        not proven, and the store of this peer is not full of later accusations."""
        turn, known = (
            (accusation.round_id, accusation.turn),
            self._stated.get((accusation.peer, by), OrderedDict()),
        )
        late = len(known) >= ACCUSED_TURNS and turn < min(known)
        late = late or (
            len(said := self._accused_by(by)) >= ACCUSED_TURNS_BY_PEER
            and (*turn, accusation.peer) < min(said)
        )
        return turn not in known and not late and (accusation.peer, turn) not in self._proven

    def contents(self) -> dict[tuple[PeerId, Turn], set[bytes]]:
        """Return all accused contents, by server and turn."""
        found: dict[tuple[PeerId, Turn], set[bytes]] = {}
        for (server, _), known in self._stated.items():
            for turn, content in known.items():
                found.setdefault((server, turn), set()).add(content)
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
                    if self._is_proof(accusation):
                        self._proven[accusation.peer, (accusation.round_id, accusation.turn)] = None
                        proven.append(accusation.peer)
            for key, known in list(self._stated.items()):
                if known and min(known)[0] >= oldest:
                    continue  # all entries are recent enough
                kept = OrderedDict(
                    (turn, content) for turn, content in known.items() if turn[0] >= oldest
                )
                self._stated[key] = kept
                if not kept:
                    del self._stated[key]
        while len(self._proven) > PROVEN_TURNS:
            self._proven.popitem(last=False)
        return proven

    def _accused_by(self, by: PeerId) -> list[tuple[int, bytes, PeerId]]:
        """Return the turns in a peer's stored accusations, with their servers."""
        return [
            (*turn, server)
            for (server, peer), known in self._stated.items()
            if peer == by
            for turn in known
        ]

    def _state(self, by: PeerId, accusation: Accusation) -> None:
        known = self._stated.setdefault((accusation.peer, by), OrderedDict())
        known[accusation.round_id, accusation.turn] = accusation.content
        while len(known) > ACCUSED_TURNS:
            del known[min(known)]
        if len(said := self._accused_by(by)) > ACCUSED_TURNS_BY_PEER:
            at, turn, server = min(said)
            del self._stated[server, by][at, turn]

    def _is_proof(self, accusation: Accusation) -> bool:
        """Whether at least two different contents of the turn have each been reported by more than
        f peers."""
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
        """Return the table as plain tuples, with digests as hexadecimal text."""
        stated = [
            (server, by, at, turn.hex(), content.hex())
            for (server, by), known in sorted(self._stated.items())
            for (at, turn), content in sorted(known.items())
        ]
        return tuple(stated), tuple([(peer, at, turn.hex()) for peer, (at, turn) in self._proven])

    def unpack(self, packed: Any) -> None:
        """Load the result of another peer's ``pack``. Raises ``ValueError``, and changes nothing,
        if the data is invalid."""
        accusations, turns = unpacked("equivocations", _PACKED, packed)
        stated: dict[tuple[PeerId, PeerId], OrderedDict[Turn, bytes]] = {}
        for server, by, at, turn, content in accusations:
            known = stated.setdefault((server, by), OrderedDict())
            known[at, turn] = content
            if len(known) > ACCUSED_TURNS:
                raise ValueError("equivocations: too many accusations by one peer")
        self._stated = stated
        self._proven = OrderedDict.fromkeys([(server, (at, turn)) for server, at, turn in turns])


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
            if place in apart
            or place[1] in forked
            or stated.get((c.peer, (c.round_id, c.turn)), NONE) - {c.content}
        ]
        return sorted(
            [c for c in disputed if equivocations.wants(self.local, c)],
            key=lambda accusation: accusation.round_id,
        )


def _hash(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()
