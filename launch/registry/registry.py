"""Shared state of the join servers of a run: the address of each peer, the owner of each id, and
the other join servers. Pure: no sockets.

The state is one register per peer id. If there are several entries for an id, every join server
keeps the greatest entry (``PeerEntry.order``), in whatever order they arrive. So join servers that
received the same entries have the same state. A join server has an id of its own, which also
identifies its launcher.

Any process that can connect may send entries, so the source matters (``merge_claims``). While a
join server replies at its own address, its entries about its own peers have priority. Claims of
others about these peers count only while that join server does not reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Literal, TypeAlias

from gossip.run import Seed

JOIN_SERVER_ID_BYTES = 8
JOIN_SERVERS_MAX = 1024
GRANT_S = 10.0
"""Lifetime of a grant, in seconds. Within this time, the join server with the grant either reports
to all join servers that it has assigned the id, or does not use the id."""
LEASE_S = 60.0
"""Time from the assignment of an id until the launcher of the newcomer must have a join server, in
seconds. A launcher that has no join server by then counts as failed."""
CLAIM_S = 300.0
"""Time after which a claimed id without an address becomes free again, in seconds."""
UNMET_MAX = 64
"""Maximum number of join servers that were only named by others and have never replied. It bounds
the effect of invented join servers."""
JUMP_MAX = 2**16
"""Largest increase of a peer's incarnation that another join server may claim. Without this limit,
a claim of the largest possible incarnation would prevent any further one."""
CLAIMED: Literal[0] = 0
LISTENING: Literal[1] = 1
LET_IN: Literal[2] = 2
Progress: TypeAlias = Literal[0, 1, 2]


@dataclass(frozen=True, slots=True)
class PeerEntry:
    """State of one incarnation of a peer.

    Attributes:
        progress: CLAIMED: the id is taken; LISTENING: the peer has an address; LET_IN: a round has
            admitted the peer. It never decreases within an incarnation.
        owner: Id of the join server of the launcher that runs the peer; b"" if the launcher has no
            join server.
        ended: The peer has ended and is not restarted. A newcomer may get its id, with a higher
            incarnation.
    """

    peer: int
    incarnation: int
    progress: Progress
    owner: bytes
    ended: bool = False
    control: str = ""
    bulk: str = ""
    key: str = ""

    @property
    def order(self) -> tuple[int, int, bytes, bool, str, str, str]:
        """Sort key of entries for the same id: the greatest entry is kept. A later incarnation is
        greater. Join servers that cannot reach each other may assign the same incarnation twice.
        Then the entry with more progress is greater, and otherwise the entry of the join server
        with the greater id, which is random."""
        return (
            self.incarnation,
            self.progress,
            self.owner,
            self.ended,
            self.control,
            self.bulk,
            self.key,
        )

    @property
    def seed(self) -> Seed | None:
        """The entry as a seed, the format of the files that peers read; None if the peer has no
        address yet."""
        if self.ended:
            return Seed(self.peer, "", "", self.incarnation, ended=True)
        if self.progress == CLAIMED:
            return None
        return Seed(self.peer, self.control, self.bulk, self.incarnation, key=self.key)


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """A join server.

    Attributes:
        place: Id of the folder of its run. Join servers that share a folder do not write each
            other's entries into it.
    """

    join_server: bytes
    address: str
    place: bytes
    ended: bool = False


@dataclass(frozen=True, slots=True)
class RegistryDelta:
    """Changes of a registry."""

    entries: tuple[PeerEntry, ...] = ()
    join_servers: tuple[ServerEntry, ...] = ()
    lost: tuple[int, ...] = ()  # local ids that another launcher has, too
    # Join servers that others report as closed. The launcher calls them to verify the report.
    closed: tuple[ServerEntry, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries or self.join_servers)


IdProposal: TypeAlias = tuple[PeerEntry, ...]
"""Ids that a join server assigns if the other join servers agree."""


class Registry:
    """The registry of one join server.

    Args:
        own: Ids of the peers that this launcher runs, with their first incarnations.
        first: First id for newcomers.
        ids: Number of ids.
    """

    def __init__(self, local: ServerEntry, own: Mapping[int, int], first: int, ids: int) -> None:
        self.local, self.first, self._ids = local, first, ids
        self.entries: dict[int, PeerEntry] = {}
        self.join_servers: dict[bytes, ServerEntry] = {local.join_server: local}
        self.own: set[int] = set(own)
        self._proposals: list[IdProposal] = []  # own ones that have not yielded
        self._granted: dict[int, tuple[PeerEntry, float]] = {}
        # Times at which entries expire: those of launchers that have no join server yet, and
        # claimed ids without an address.
        self._leases: dict[PeerEntry, float] = {}
        self._claims: dict[PeerEntry, float] = {}
        # ids with an entry that was confirmed by its owner, a join server
        self._vouched: set[int] = set()
        self._met: set[bytes] = set()  # join servers that have replied
        self.merge(
            [
                PeerEntry(peer, incarnation, CLAIMED, local.join_server)
                for peer, incarnation in own.items()
            ]
        )

    # --- known peers and join servers -------------------------------------------------------------

    def merge(self, entries: Iterable[PeerEntry]) -> RegistryDelta:
        """Merge entries of another join server or of the folder. Return the changes."""
        new = tuple([taken for entry in entries if self._add_entry(taken := self._disowned(entry))])
        lost = tuple(
            [
                entry.peer
                for entry in new
                if entry.peer in self.own and entry.owner != self.local.join_server
            ]
        )
        self.own.difference_update(lost)
        return RegistryDelta(new, lost=lost)

    def merge_claims(
        self,
        entries: Iterable[PeerEntry],
        join_servers: Iterable[ServerEntry],
        source: bytes,
        answers: Callable[[bytes], bool],
    ) -> RegistryDelta:
        """Merge those claims of a sender that are credible. Return the changes.

        Args:
            source: Join server that replied with the claims at its own address; b"" if the claims
                were sent here by any process.
            answers: Whether a join server replies at present.
        """
        new: list[PeerEntry] = []
        lost: list[int] = []
        for entry in entries:
            if self._is_credible(entry, source, answers):
                # An end is never confirmed, so that false claims cannot replace it.
                own_word = source != b"" and entry.owner == source and not entry.ended
                if own_word and entry.peer not in self._vouched | self.own:
                    # Drop an unconfirmed claim of others about this peer, even if it is greater.
                    self.entries.pop(entry.peer, None)
                news = self.merge([entry])
                new += news.entries
                lost += news.lost
                if own_word and self.entries.get(entry.peer) == entry:
                    self._vouched.add(entry.peer)
        named = [
            join_server
            for join_server in join_servers
            if join_server.join_server != self.local.join_server
        ]
        closed = [
            join_server
            for join_server in named
            if join_server.ended
            and join_server.join_server in self.join_servers
            and not self.join_servers[join_server.join_server].ended
        ]
        return RegistryDelta(
            tuple(new),
            tuple([join_server for join_server in named if self._add_named_server(join_server)]),
            tuple(lost),
            tuple(closed),
        )

    def _is_credible(
        self, entry: PeerEntry, source: bytes, answers: Callable[[bytes], bool]
    ) -> bool:
        known, own_word = self.entries.get(entry.peer), source != b"" and entry.owner == source
        if entry.incarnation > JUMP_MAX + (0 if known is None else known.incarnation):
            return False
        if known is None:
            return True
        if entry.peer in self.own:
            # This launcher has the latest state of its own peers, so it rejects claims about them.
            # The exception is the id of a newcomer, which may have been assigned twice.
            return own_word and entry.peer >= self.first and entry.incarnation == known.incarnation
        later = entry.incarnation > known.incarnation
        vouched = entry.peer in self._vouched and answers(known.owner)
        if not vouched or entry.owner == known.owner == source:
            return True
        # The owner replies and has confirmed its entry. Only a second assignment of the same id, or
        # a later incarnation after the end, may replace it.
        return known.ended if later else own_word

    def _add_named_server(self, join_server: ServerEntry) -> bool:
        """Add a join server that another join server has named, if it is new. Only a visit may
        change the address of a known join server, or find that it has closed."""
        known = self.join_servers.get(join_server.join_server)
        unmet = [
            other
            for other in self.join_servers.values()
            if other.join_server not in self._met and not other.ended
        ]
        if join_server.ended or len(unmet) > UNMET_MAX:
            return False
        if known is not None and not known.ended:
            # A join server that has replied keeps its address.
            return known.address != join_server.address and join_server.join_server not in self._met
        # The join server was reported closed. The report may have been false.
        self.join_servers.pop(join_server.join_server, None)
        self._met.discard(join_server.join_server)
        return self._add_server(join_server)

    def meet(self, join_server: ServerEntry) -> bool:
        """Record that a join server has replied at the address in its entry. Return False if a join
        server with the same id has replied at another address."""
        known = self.join_servers.get(join_server.join_server)
        if join_server.ended or join_server.join_server == self.local.join_server:
            return False
        if (
            known is not None
            and known.address != join_server.address
            and join_server.join_server in self._met
            and not known.ended
        ):
            return False
        if known is None and not self._add_server(join_server):
            return False
        # Its own entry replaces the entries that others sent.
        self.join_servers[join_server.join_server] = join_server
        self._met.add(join_server.join_server)
        return True

    def forget(self, join_server: bytes) -> None:
        """Remove a join server that does not reply, and that was reported closed or only named by
        others."""
        if join_server in self._met:
            self.join_servers[join_server] = replace(self.join_servers[join_server], ended=True)
        elif join_server != self.local.join_server:
            self.join_servers.pop(join_server, None)

    @property
    def announced_servers(self) -> tuple[ServerEntry, ...]:
        """Join servers to report to others: this one, and those that have replied at least once."""
        return tuple(
            [
                entry
                for join_server, entry in self.join_servers.items()
                if join_server in self._met or join_server == self.local.join_server
            ]
        )

    def _disowned(self, entry: PeerEntry) -> PeerEntry:
        """Return the entry, marked as ended if it assigns to this launcher an id that this launcher
        does not have. The reply that assigned the id was lost."""
        known = self.entries.get(entry.peer)
        mine = entry.owner == self.local.join_server and entry.peer not in self.own
        had = known is not None and (known.owner, known.incarnation) == (
            entry.owner,
            entry.incarnation,
        )
        return replace(entry, ended=True) if mine and not had else entry

    def _add_entry(self, entry: PeerEntry) -> bool:
        known = self.entries.get(entry.peer)
        if not 0 <= entry.peer < self._ids or (known is not None and entry.order <= known.order):
            return False
        self.entries[entry.peer] = entry
        self._vouched.discard(entry.peer)
        return True

    def _add_server(self, join_server: ServerEntry) -> bool:
        """Add a new join server. Return False if there is no room."""
        if len(self.join_servers) >= JOIN_SERVERS_MAX:
            gone = next(
                (other.join_server for other in self.join_servers.values() if other.ended), None
            )
            if gone is None:
                return False
            del self.join_servers[gone]
            self._met.discard(gone)
        self.join_servers[join_server.join_server] = join_server
        return True

    def publish(self, seed: Seed, let_in: bool = False) -> RegistryDelta:
        """Merge the seed file of a peer in this run's folder. The peer belongs to this launcher, or
        to a launcher without a join server. Return the changes."""
        known, own = self.entries.get(seed.peer), seed.peer in self.own
        same = known is not None and known.incarnation == seed.incarnation
        if known is not None and same and not own and known.owner:
            return RegistryDelta()  # The peer's own join server has newer data.
        progress: Progress = LET_IN if let_in else CLAIMED if seed.ended else LISTENING
        if known is not None and same and known.progress > progress:
            progress = known.progress
        owner = self.local.join_server if own else b""
        where = (seed.control, seed.bulk, seed.key)
        news = self.merge(
            [PeerEntry(seed.peer, seed.incarnation, progress, owner, seed.ended, *where)]
        )
        if seed.ended:
            self.own.discard(seed.peer)
        return news

    def claimed(self, peer: int, incarnation: int) -> RegistryDelta:
        """Record that a newcomer without a join server has claimed an id in the folder."""
        return self.merge([PeerEntry(peer, incarnation, CLAIMED, b"")])

    def digest(self) -> bytes:
        """Return a hash of the registry, equal for two join servers with the same entries."""
        join_servers = sorted(
            join_server for join_server, entry in self.join_servers.items() if not entry.ended
        )
        return blake2b(
            repr((sorted(entry.order for entry in self.entries.values()), join_servers)).encode(),
            digest_size=16,
        ).digest()

    def missing(self) -> list[int]:
        """Return the initial peers without a known address, ascending."""
        known = {
            peer for peer, entry in self.entries.items() if entry.progress > CLAIMED or entry.ended
        }
        return [peer for peer in range(self.first) if peer not in known]

    def stateless(self) -> set[int]:
        """Return the newcomers and restarted peers that no round has admitted yet."""
        return {
            peer
            for peer, entry in self.entries.items()
            if entry.owner  # Peers without a join server do not report their admission.
            and entry.progress < LET_IN
            and (peer >= self.first or entry.incarnation > 0)
        }

    @property
    def state(self) -> Literal["not begun", "running", "over"]:
        """State of the run. ``over``: all peers have ended."""
        if all(entry.ended for entry in self.entries.values()):
            return "over" if self.entries else "not begun"
        return (
            "running"
            if any(entry.progress > CLAIMED and not entry.ended for entry in self.entries.values())
            else "not begun"
        )

    def end(self) -> ServerEntry:
        """Mark this join server as closed. Return its entry, for the other join servers."""
        self.local = self.join_servers[self.local.join_server] = replace(self.local, ended=True)
        return self.local

    # --- ids for newcomers ------------------------------------------------------------------------

    def free(self, now: float) -> list[int]:
        """Return the ids that a newcomer may get: first unused ids, then those of ended peers."""
        taken = {entry.peer for proposal in self._proposals for entry in proposal}
        taken |= {peer for peer, (_, until) in self._granted.items() if now < until}
        fresh = [
            peer
            for peer in range(self.first, self._ids)
            if peer not in self.entries and peer not in taken
        ]
        return fresh + [
            peer
            for peer, entry in sorted(self.entries.items())
            if entry.ended and peer not in taken
        ]

    def propose(
        self, owner: bytes, count: int, now: float, draw: Callable[[int], int] | None = None
    ) -> IdProposal | None:
        """Choose ids for ``count`` newcomers of a launcher; None if too few are free.

        Args:
            draw: Returns a random integer below its argument. It is given after a conflict, in
                order to choose other ids than the competing proposal.
        """
        free = self.free(now)
        if len(free) < count:
            return None
        skip = draw(len(free) - count + 1) if draw is not None else 0
        chosen = free[skip : skip + count]
        proposal = tuple(
            [PeerEntry(peer, self._next_incarnation(peer), CLAIMED, owner) for peer in chosen]
        )
        self._proposals.append(proposal)
        return proposal

    def _next_incarnation(self, peer: int) -> int:
        known = self.entries.get(peer)
        return 0 if known is None else known.incarnation + 1

    def consider(self, entries: Iterable[PeerEntry], now: float) -> list[int]:
        """Return the ids of another join server's proposal that this join server grants. It grants
        such an id to no other join server for ``GRANT_S``.

        If two join servers propose the same id at the same time, the proposal with the smaller
        entry yields: it is withdrawn. So two join servers that reach each other never assign the
        same id.
        """
        return [entry.peer for entry in entries if self._grants(entry, now)]

    def _grants(self, entry: PeerEntry, now: float) -> bool:
        known, (granted, until) = (
            self.entries.get(entry.peer),
            self._granted.get(entry.peer, (None, 0.0)),
        )
        if not 0 <= entry.peer < self._ids or (known is None and entry.peer < self.first):
            return False
        if (
            known is not None
            and known != entry
            and not (known.ended and entry.incarnation > known.incarnation)
        ):
            return False
        if granted is not None and granted != entry and now < until:
            return False
        for proposal in tuple(self._proposals):
            for ours in proposal:
                if ours.peer == entry.peer:
                    if ours.order > entry.order:
                        return False
                    self._proposals.remove(proposal)
        self._granted[entry.peer] = (entry, now + GRANT_S)
        return True

    def agreed(self, proposal: IdProposal, granted: Iterable[Iterable[int]]) -> bool:
        """Whether all join servers that replied have granted the proposed ids. This call ends the
        proposal.

        Args:
            granted: Granted ids, for each join server that has replied. Unreachable join servers
                have no vote: if one of them assigns the same id, ``merge`` resolves the conflict.
        """
        if proposal not in self._proposals:
            return False  # It has yielded.
        self._proposals.remove(proposal)
        wanted = {entry.peer for entry in proposal}
        free = all(map(self._is_next, proposal))
        return free and all(wanted <= set(peers) for peers in granted)

    def assign_ids(self, proposal: IdProposal, now: float) -> RegistryDelta:
        """Assign the ids of an accepted proposal."""
        for entry in proposal:
            if entry.owner == self.local.join_server:
                self.own.add(entry.peer)
            else:
                self._leases[entry] = now + LEASE_S
        return self.merge(proposal)

    def _is_next(self, entry: PeerEntry) -> bool:
        known = self.entries.get(entry.peer)
        return known is None or (known.ended and entry.incarnation > known.incarnation)

    def expire(self, now: float) -> RegistryDelta:
        """Free the ids of launchers that never opened a join server, and claims that have
        expired."""
        self._granted = {peer: grant for peer, grant in self._granted.items() if now < grant[1]}
        known = self.entries.values()
        self._leases = {
            entry: until
            for entry, until in self._leases.items()
            if entry in known and entry.owner not in self.join_servers
        }
        self._claims = {
            entry: self._claims.get(entry, now + CLAIM_S)
            for entry in known
            if entry.progress == CLAIMED
            and not entry.ended
            and entry.peer not in self.own
            and entry.peer >= self.first
        }
        waiting = (*self._leases.items(), *self._claims.items())
        over = dict.fromkeys(entry for entry, until in waiting if now >= until)
        return self.merge([replace(entry, ended=True) for entry in over])
