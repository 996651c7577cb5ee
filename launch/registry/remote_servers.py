"""Visits to the other join servers. A join server visits the others at once after a change, and
otherwise every second to compare digests.

A reply from the address of a join server is that server's own claim. A message that arrives here
may come from any process, so it only causes a visit. A message that announces the end of a join
server takes effect once the server no longer replies.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from . import join_messages as says
from .join_calls import JoinServerUnreachable
from .join_socket import JoinSocket
from .registry import UNMET_MAX, PeerEntry, Registry, RegistryDelta, ServerEntry

VISIT_S = 1.0
VISIT_SOON_S = 0.2  # while the address of an initial peer is missing
BACK_OFF_MAX_S = 8.0
NAMED_TRIES = 6
"""Number of visits after which a join server that others have named and that has never replied is
removed. They take about twenty seconds."""

LearnAddress = Callable[[Iterable[PeerEntry], Iterable[ServerEntry], bytes], None]


@dataclass(slots=True)
class RemoteServer:
    """Another join server, and the state of the visits to it.

    Attributes:
        named: Whether only others have named this join server. It has never replied.
        doubt: Whether a message in its name has arrived, which the next visit verifies.
        farewell: Entries of a message in its name that announced its end; None without one, and
            after its next reply.
    """

    address: str
    # ids of the entries that must still be sent to this join server
    news: set[int] = field(default_factory=set)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    tries: int = 0  # failed visits since its last reply
    error: str = ""
    answered: bool = False
    gone: bool = False
    named: bool = False
    doubt: bool = False
    farewell: tuple[PeerEntry, ...] | None = None


class RemoteServers:
    """All join servers that one join server visits.

    Args:
        socket: Sends the requests, and runs the visits in the background.
        learn: Called with entries of a join server, and their source, to merge them.
    """

    def __init__(
        self, run: bytes, keeper: Registry, socket: JoinSocket, learn: LearnAddress
    ) -> None:
        self._run, self._keeper, self._socket, self._learn = run, keeper, socket, learn
        self.all: dict[str, RemoteServer] = {}

    @property
    def there(self) -> list[str]:
        """Addresses of join servers that reply."""
        return [other.address for other in self.all.values() if other.answered and not other.tries]

    def troubles(self) -> list[str]:
        """Return a line on each join server that does not reply, with its last error."""
        return [
            f"{other.address}: {other.error} (x{other.tries})"
            for other in self.all.values()
            if other.tries
        ]

    def answers(self, join_server: bytes) -> bool:
        """Whether a join server replies at present."""
        entry = self._keeper.join_servers.get(join_server)
        other = self.all.get(entry.address) if entry is not None and not entry.ended else None
        return other is not None and other.answered and not other.tries

    def visit(self, address: str, named: bool = False) -> None:
        """Visit a join server from now on. Do nothing if others have only ``named`` it and too many
        such servers have never replied."""
        if address not in self.all and not (
            named and sum(other.named for other in self.all.values()) > UNMET_MAX
        ):
            neighbour = self.all[address] = RemoteServer(
                address, set(self._keeper.entries), named=named
            )
            self._socket.run(self._visits(neighbour))

    def spread(self, news: RegistryDelta) -> None:
        for neighbour in self.all.values() if news else ():
            neighbour.news.update(entry.peer for entry in news.entries)
            if not neighbour.tries:
                neighbour.wake.set()

    def make_sure(self, join_server: ServerEntry, entries: Iterable[PeerEntry]) -> None:
        """Verify by a visit a message that was sent in the name of a join server."""
        known = self._keeper.join_servers.get(join_server.join_server)
        neighbour = self.all.get(join_server.address)
        if neighbour is None or known is None or known.address != join_server.address:
            return
        neighbour.doubt = True
        if join_server.ended:
            neighbour.farewell = (
                tuple([entry for entry in entries if entry.owner == join_server.join_server])
                or neighbour.farewell
                or ()
            )
        if not neighbour.tries:
            neighbour.wake.set()

    async def _visits(self, neighbour: RemoteServer) -> None:
        """Visit one join server until it is removed."""
        while not neighbour.gone:
            told, neighbour.news = neighbour.news, set()
            neighbour.wake.clear()
            pause_s = VISIT_S
            try:
                with self._socket.going_on():
                    await self._talk(neighbour, told)
                neighbour.tries, neighbour.answered, neighbour.named = 0, True, False
                pause_s = VISIT_SOON_S if self._keeper.missing() else VISIT_S
            except JoinServerUnreachable as silence:
                neighbour.tries, neighbour.error = neighbour.tries + 1, str(silence)
                neighbour.news |= told
                pause_s = min(BACK_OFF_MAX_S, VISIT_SOON_S * 2 ** min(neighbour.tries, 10))
                with self._socket.going_on():
                    self._let_go(neighbour)
            with contextlib.suppress(TimeoutError):
                # Not ``wait_for``: a cancellation that arrives as it is woken is lost (bpo-37658),
                # and the join server would never close.
                async with asyncio.timeout(pause_s):
                    await neighbour.wake.wait()

    def _let_go(self, neighbour: RemoteServer) -> None:
        """Remove a join server that does not reply, if its end was announced, or if only others
        have named it and it failed ``NAMED_TRIES`` visits."""
        if neighbour.farewell is None and not (neighbour.named and neighbour.tries >= NAMED_TRIES):
            return
        neighbour.gone = True
        del self.all[neighbour.address]
        for join_server in [
            join_server.join_server
            for join_server in self._keeper.join_servers.values()
            if join_server.address == neighbour.address
        ]:
            self._keeper.forget(join_server)
        self._learn(neighbour.farewell or (), (), b"")

    async def _talk(self, neighbour: RemoteServer, told: Collection[int]) -> None:
        """Send changes to a join server, or compare digests with it. Raises:
        JoinServerUnreachable."""
        keeper, run, address = self._keeper, self._run, neighbour.address
        known = tuple([keeper.entries[peer] for peer in told if peer in keeper.entries])
        if known:
            await self._state(address, says.RegistryPush(run, keeper.local, known, ()))
        if known and not neighbour.doubt and neighbour.answered:
            return
        neighbour.doubt = False
        answer = await self._state(address, says.RegistryPull(run, keeper.local, keeper.digest()))
        neighbour.farewell = None
        its_word = answer.join_server.address == address and keeper.meet(answer.join_server)
        self._learn(
            answer.entries,
            (answer.join_server, *answer.join_servers),
            answer.join_server.join_server if its_word else b"",
        )
        if answer.digest != keeper.digest():
            await self._state(
                address,
                says.RegistryPush(
                    run, keeper.local, tuple(keeper.entries.values()), keeper.announced_servers
                ),
            )

    async def _state(self, address: str, question: says.Question) -> says.RegistryState:
        answer = await self._socket.ask(address, question)
        if isinstance(answer, says.JoinRejected):
            raise JoinServerUnreachable(answer.message)
        if not isinstance(answer, says.RegistryState):
            raise JoinServerUnreachable("its reply does not fit the request")
        return answer
