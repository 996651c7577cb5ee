"""Common knowledge of the join servers of a run: the address of each peer, the owner of each id,
and the other join servers. Pure: no sockets.

The state is one register per id. Of two entries for an id every join server keeps the same one, in
whatever order and however often they arrive. So join servers that got the same entries have the
same state. A join server is an id of its own, together with the launcher that owns it.

Anybody who can connect may send anything, so the source counts (``merge_claims``). A join server
that answers at its own address is believed about its own peers before anybody else. Others are
believed about those peers only while it does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Literal, TypeAlias

from gossip.run import Seed

JOIN_SERVER_ID_BYTES = 8
JOIN_SERVERS_MAX = 1024
GRANT_S = 10.0
"""Lifetime of a grant, in seconds. A join server that was granted an id has reported to all join
servers by then that the id is taken, or does not take it."""
LEASE_S = 60.0
"""Time that a launcher has after it was given an id, in seconds. It opens a join server of its own
at once; if it has none by then, it will not come."""
CLAIM_S = 300.0
"""A newcomer has an address by then, or its id goes back, whoever has claimed it."""
UNMET_MAX = 64
"""Join servers that were named and have not answered yet:
whoever makes them up fills no more than this."""
JUMP_MAX = 2**16
"""Largest increase of a peer's incarnation that another join server may claim. After the largest
number that there is, no further life would be possible."""
CLAIMED: Literal[0] = 0
LISTENING: Literal[1] = 1
LET_IN: Literal[2] = 2
Progress: TypeAlias = Literal[0, 1, 2]

Order: TypeAlias = tuple[int, int, bytes, bool, str, str, str]


@dataclass(frozen=True, slots=True)
class PeerEntry:
    """Knowledge about the life of a peer.

    Attributes:
        progress: CLAIMED: its id is taken; LISTENING: it has an address; LET_IN: it trains with the
            others. It only grows.
        owner: The join server whose launcher runs it; b"": one that has no join server.
        ended: It is not started again, and who comes may have its id, under a higher incarnation.
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
    def order(self) -> Order:
        """Return the sort key of an entry: of two for an id the greater counts. That is the later
        life; of two that were given the same by join servers that could not reach each other the
        one that got further, then the one whose join server has the greater number, which is drawn
        and so nobody's choice."""
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
        """Return the entry as the file for the peers of a host has it; None: there is no address
        yet."""
        if self.ended:
            return Seed(self.peer, "", "", self.incarnation, ended=True)
        if self.progress == CLAIMED:
            return None
        return Seed(self.peer, self.control, self.bulk, self.incarnation, key=self.key)


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """A join server.

    Attributes:
        place: Of its run's folder: join servers that share one do not write each other's
            entries into it.
    """

    join_server: bytes
    address: str
    place: bytes
    ended: bool = False

    @property
    def order(self) -> tuple[bool, str, bytes]:
        return (self.ended, self.address, self.place)


@dataclass(frozen=True, slots=True)
class RegistryDelta:
    """News to a join server."""

    entries: tuple[PeerEntry, ...] = ()
    join_servers: tuple[ServerEntry, ...] = ()
    lost: tuple[int, ...] = ()  # own ids that turned out to be somebody else's
    # join servers that are said to have closed: whoever visits them finds out
    closed: tuple[ServerEntry, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries or self.join_servers)


@dataclass(slots=True)
class IdProposal:
    """Ids that this join server wants to give away, until the others have agreed."""

    entries: tuple[PeerEntry, ...]
    yielded: set[int] = field(default_factory=set)


class Registry:
    """The knowledge of one join server.

    Args:
        own: Ids that this launcher runs, and the incarnations that they begin with.
        first: Ids from this on are for newcomers; ``ids``: there are no more than so many.
    """

    def __init__(self, local: ServerEntry, own: Mapping[int, int], first: int, ids: int) -> None:
        self.local, self.first, self._ids = local, first, ids
        self.entries: dict[int, PeerEntry] = {}
        self.join_servers: dict[bytes, ServerEntry] = {local.join_server: local}
        self.own: set[int] = set(own)
        self._proposals: list[IdProposal] = []
        self._granted: dict[int, tuple[PeerEntry, float]] = {}
        self._leases: dict[int, tuple[PeerEntry, float]] = {}
        # of newcomers, and until when they count
        self._claims: dict[int, tuple[PeerEntry, float]] = {}
        self._vouched: set[int] = (
            set()
        )  # ids whose entry is the word of the join server that it names
        self._met: set[bytes] = set()  # join servers that have answered
        self.merge(
            [
                PeerEntry(peer, incarnation, CLAIMED, local.join_server)
                for peer, incarnation in own.items()
            ]
        )

    # --- what is known ----------------------------------------------------------------------------

    def merge(
        self, entries: Iterable[PeerEntry] = (), join_servers: Iterable[ServerEntry] = ()
    ) -> RegistryDelta:
        """Takes in what another join server says, or what was found in the folder.
        Returns what of it was new."""
        new = tuple([taken for entry in entries if self._add_entry(taken := self._disowned(entry))])
        lost = tuple(
            [
                entry.peer
                for entry in new
                if entry.peer in self.own and entry.owner != self.local.join_server
            ]
        )
        self.own.difference_update(lost)
        return RegistryDelta(
            new,
            tuple([join_server for join_server in join_servers if self._add_server(join_server)]),
            lost,
        )

    def merge_claims(
        self,
        entries: Iterable[PeerEntry],
        join_servers: Iterable[ServerEntry],
        source: bytes,
        answers: Callable[[bytes], bool],
    ) -> RegistryDelta:
        """Merge what somebody has said, as far as that one may say it.

        Args:
            source: The join server that has said it at its own address; b"":
                somebody has sent it here.
            answers: Whether a join server of that number answers at present.
        """
        new: list[PeerEntry] = []
        lost: list[int] = []
        for entry in entries:
            if self._is_credible(entry, source, answers):
                # who has ended has no more to lose
                own_word = source != b"" and entry.owner == source and not entry.ended
                if own_word and entry.peer not in self._vouched | self.own:
                    # what others had said of it before, however great
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
            # Of ours nobody knows more than we do;
            # but a newcomer's id may have been given away twice.
            return own_word and entry.peer >= self.first and entry.incarnation == known.incarnation
        later = entry.incarnation > known.incarnation
        vouched = entry.peer in self._vouched and answers(known.owner)
        if not vouched or entry.owner == known.owner == source:
            return True
        # Its join server is there, and has said how it is: another join server may have been given
        # the id as well, or have it next.
        return known.ended if later else own_word

    def _add_named_server(self, join_server: ServerEntry) -> bool:
        """A join server has one address, and when it has closed others cannot know better than
        whoever visits it."""
        known = self.join_servers.get(join_server.join_server)
        unmet = [
            other
            for other in self.join_servers.values()
            if other.join_server not in self._met and not other.ended
        ]
        if join_server.ended or len(unmet) > UNMET_MAX:
            return False
        if known is not None and not known.ended:
            # it is where somebody answers
            return known.address != join_server.address and join_server.join_server not in self._met
        # it was taken for closed: that others have said so may have been a lie
        self.join_servers.pop(join_server.join_server, None)
        self._met.discard(join_server.join_server)
        return self._add_server(join_server)

    def meet(self, join_server: ServerEntry) -> bool:
        """A join server has answered, at the address that this says. False:
        one of its number is known elsewhere."""
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
        # what others have said of it counts no more
        self.join_servers[join_server.join_server] = join_server
        self._met.add(join_server.join_server)
        return True

    def forget(self, join_server: bytes) -> None:
        """It was said to have closed, or was only named, and does not answer."""
        if join_server in self._met:
            self.merge((), [replace(self.join_servers[join_server], ended=True)])
        elif join_server != self.local.join_server:
            self.join_servers.pop(join_server, None)

    @property
    def announced_servers(self) -> tuple[ServerEntry, ...]:
        """The join servers that others are told of: those where we have seen that somebody
        is there, or was."""
        return tuple(
            [
                entry
                for join_server, entry in self.join_servers.items()
                if join_server in self._met or join_server == self.local.join_server
            ]
        )

    def _disowned(self, entry: PeerEntry) -> PeerEntry:
        """Ids that we are said to have and do not know of go back:
        the answer that gave them to us was lost."""
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
        known = self.join_servers.get(join_server.join_server)
        if join_server.join_server == self.local.join_server or (
            known is not None and join_server.order <= known.order
        ):
            return False
        if known is None and len(self.join_servers) >= JOIN_SERVERS_MAX:
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
        """Return what the file of a peer in this run's folder says: of an own one, or of one that
        has no join server."""
        known, own = self.entries.get(seed.peer), seed.peer in self.own
        same = known is not None and known.incarnation == seed.incarnation
        if known is not None and same and not own and known.owner:
            return RegistryDelta()  # its join server knows better
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
        """Somebody without a join server has taken an id: there is the file of a claim."""
        return self.merge([PeerEntry(peer, incarnation, CLAIMED, b"")])

    def digest(self) -> bytes:
        """The same at two join servers that know the same."""
        join_servers = sorted(
            join_server for join_server, entry in self.join_servers.items() if not entry.ended
        )
        return blake2b(
            repr((sorted(entry.order for entry in self.entries.values()), join_servers)).encode(),
            digest_size=16,
        ).digest()

    def missing(self) -> list[int]:
        """Those of the first peers that nobody knows an address of, ascending."""
        known = {
            peer for peer, entry in self.entries.items() if entry.progress > CLAIMED or entry.ended
        }
        return [peer for peer in range(self.first) if peer not in known]

    def stateless(self) -> set[int]:
        """Return the peers that are on their way to a run that has begun: newcomers and restarted
        peers that no round has let in."""
        return {
            peer
            for peer, entry in self.entries.items()
            if entry.owner  # others do not report whom they let in
            and entry.progress < LET_IN
            and (peer >= self.first or entry.incarnation > 0)
        }

    @property
    def state(self) -> Literal["not begun", "running", "over"]:
        """``over``: all peers that ever came have ended."""
        if all(entry.ended for entry in self.entries.values()):
            return "over" if self.entries else "not begun"
        return (
            "running"
            if any(entry.progress > CLAIMED and not entry.ended for entry in self.entries.values())
            else "not begun"
        )

    def end(self) -> ServerEntry:
        """This join server closes. Returns what to tell the others."""
        self.local = self.join_servers[self.local.join_server] = replace(self.local, ended=True)
        return self.local

    # --- ids for newcomers ------------------------------------------------------------------------

    def free(self, now: float) -> list[int]:
        """Ids that a newcomer may have, those that nobody has had first."""
        taken = {entry.peer for proposal in self._proposals for entry in proposal.entries}
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
        """Chooses ids for ``count`` newcomers of a launcher; None: there are not so many.

        Args:
            draw: A number below the one given: after a proposal that others were in the way of, to
                go out of theirs.
        """
        free = self.free(now)
        if len(free) < count:
            return None
        skip = draw(len(free) - count + 1) if draw is not None else 0
        chosen = free[skip : skip + count]
        proposal = IdProposal(
            tuple(
                [PeerEntry(peer, self._next_incarnation(peer), CLAIMED, owner) for peer in chosen]
            )
        )
        self._proposals.append(proposal)
        return proposal

    def _next_incarnation(self, peer: int) -> int:
        known = self.entries.get(peer)
        return 0 if known is None else known.incarnation + 1

    def consider(self, entries: Iterable[PeerEntry], now: float) -> list[int]:
        """Return the ids, of those that another join server wants to give away, that it may. What
        is granted is granted to nobody else for a while.

        Of two join servers that want the same id at the same time one yields, and always the same
        one: so each pair of join servers that can reach each other gives an id away once.
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
        for proposal in self._proposals:
            for ours in proposal.entries:
                if ours.peer == entry.peer and ours.peer not in proposal.yielded:
                    if ours.order > entry.order:
                        return False
                    proposal.yielded.add(ours.peer)
        self._granted[entry.peer] = (entry, now + GRANT_S)
        return True

    def agreed(self, proposal: IdProposal, granted: Iterable[Iterable[int]]) -> bool:
        """Whether nobody is in the way of a proposal, which is over now.

        Args:
            granted: Of each join server that has answered, what it granted. Who cannot be reached
                has no say: should it have given away the same, ``merge`` finds out.
        """
        self._proposals.remove(proposal)
        wanted = {entry.peer for entry in proposal.entries}
        free = not proposal.yielded and all(map(self._is_next, proposal.entries))
        return free and all(wanted <= set(peers) for peers in granted)

    def assign_ids(self, proposal: IdProposal, now: float) -> RegistryDelta:
        """Gives away what all have agreed to."""
        for entry in proposal.entries:
            if entry.owner == self.local.join_server:
                self.own.add(entry.peer)
            else:
                self._leases[entry.peer] = (entry, now + LEASE_S)
        return self.merge(proposal.entries)

    def _is_next(self, entry: PeerEntry) -> bool:
        known = self.entries.get(entry.peer)
        return known is None or (known.ended and entry.incarnation > known.incarnation)

    def expire(self, now: float) -> RegistryDelta:
        """Takes ids back from launchers that were given them and never came."""
        self._granted = {peer: grant for peer, grant in self._granted.items() if now < grant[1]}
        over = [entry for entry, until in self._leases.values() if now >= until]
        for entry in over:
            del self._leases[entry.peer]
        missing = [
            entry
            for entry in over
            if entry.owner not in self.join_servers and self.entries.get(entry.peer) == entry
        ]
        missing += self._old_claims(now)
        return self.merge([replace(entry, ended=True) for entry in missing])

    def _old_claims(self, now: float) -> list[PeerEntry]:
        """Ids that somebody has claimed, and nobody uses."""
        claims = [
            entry
            for entry in self.entries.values()
            if entry.progress == CLAIMED
            and not entry.ended
            and entry.peer not in self.own
            and entry.peer >= self.first
        ]
        since = {
            peer: until
            for peer, (entry, until) in self._claims.items()
            if self.entries.get(peer) == entry
        }
        self._claims = {
            entry.peer: (entry, since.get(entry.peer, now + CLAIM_S)) for entry in claims
        }
        return [entry for entry, until in self._claims.values() if now >= until]
