"""Socket of a join server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any

import zmq
import zmq.asyncio

from gossip.errors import Malformed
from gossip.run import read_pair
from gossip.transport import Authenticator, as_server, listen, prove_closed

from . import join_messages as says
from .join_calls import NUMBER_BYTES, ask, join, new_socket, plain
from .join_endpoint import JoinEndpoint
from .join_proxy import Proxy, bind_inside
from .sender_rates import SenderRateLimiter

ASK_S = 5.0  # five round trips of up to half a second (a satellite link), and a margin
JOIN_REQUESTS_MAX = 32
JOIN_REQUEST_COST = 20.0
BYTES_A_UNIT = 4096
UNITS_A_S, UNITS_AT_ONCE = 500.0, 2000.0
STUMBLES_MAX = 16


class JoinSocket:
    """Receives requests, within a rate limit for each host, sends replies, and runs the tasks of
    the join server.

    Args:
        host: Address to listen on if the endpoint has none.
        insecure: Whether the socket may listen on other addresses than loopback without keys.
        say: Called with lines for the user.

    Attributes:
        address: ``HOST:PORT``; "" if it is not open.
        refused: Number of messages that were dropped or failed: malformed, beyond the rate limit,
            or with an error.
    """

    def __init__(
        self, endpoint: JoinEndpoint, host: str, insecure: bool, say: Callable[[str], None]
    ) -> None:
        self._host, self._port = endpoint.host or host, endpoint.port
        self._key = read_pair(endpoint.key) if endpoint.key is not None else None
        self.insecure, self._say = insecure, say
        self._authenticator: Authenticator | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._allowance = SenderRateLimiter(UNITS_A_S, UNITS_AT_ONCE)
        self._joins = asyncio.Semaphore(JOIN_REQUESTS_MAX)
        self.refused = 0
        self._stumbles: set[str] = set()
        self.address = ""

    def open(self) -> None:
        """Start to listen. Raises: ConfigError, AddressInUse: The address cannot be used."""
        self._context = zmq.asyncio.Context()
        self._socket = new_socket(self._context, zmq.ROUTER)
        try:
            self._lock()
            inside = bind_inside(plain(self._socket))
            if self._authenticator is not None and self._key is not None:
                prove_closed(
                    self._context, [f"ipc://@{inside}"], self._key.public, self._authenticator
                )
            listener = listen(self._host, self._port, self.insecure)
        except BaseException:
            self._destroy()
            raise
        self._proxy = Proxy(listener, inside)
        self.address = join(*listener.getsockname()[:2])

    def _lock(self) -> None:
        """Restrict this join server to clients with the swarm key, if there is one."""
        if (key := self._key) is not None:
            self._authenticator = Authenticator(
                self._context, lambda client, address: client == key.public
            )
            as_server(plain(self._socket), key)
            asyncio.get_running_loop().add_reader(
                self._authenticator.fd, self._authenticator.answer
            )

    def _destroy(self) -> None:
        if self._authenticator is not None:
            asyncio.get_running_loop().remove_reader(self._authenticator.fd)
            self._authenticator.close()
        self._context.destroy(0)

    def authenticate(self) -> None:
        """Admit waiting clients. This is also called regularly, because the descriptor is
        edge-triggered: it signals only new clients."""
        if self._authenticator is not None:
            self._authenticator.answer()

    async def stop(self) -> None:
        """End all tasks. Requests can still be sent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        await self._proxy.close()
        self._destroy()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._say(f"! a worker of the join server failed: {type(error).__name__}: {error}")

    # --- requests ---------------------------------------------------------------------------------

    def serve(
        self,
        answer: Callable[[says.Said, str], says.Said | None],
        welcome: Callable[[says.JoinRequest], Awaitable[says.Said]],
    ) -> None:
        """Start to receive requests and to reply.

        Args:
            answer: Returns the reply to a request from a host; None if the message is not
                a request.
            welcome: Returns the reply to a request to join.
        """
        self.answer, self.welcome = answer, welcome
        for task in (self._serve(), self._proxy.serve()):
            self.run(task)

    async def _serve(self) -> None:
        while True:
            frames = await self._socket.recv_multipart(copy=False)
            with self.going_on():
                self._handle_request(frames)

    def _handle_request(self, frames: Sequence[zmq.Frame]) -> None:
        """Reply to one request."""
        if len(frames) != 3 or len(frames[1].buffer) != NUMBER_BYTES:
            self.refused += 1
            return
        sender, number, data = frames[0].bytes, frames[1].bytes, frames[2].bytes
        seen = self._proxy.host_of(frames[2])
        if not self._allowance.consume_units(
            seen, 1.0 + len(data) / BYTES_A_UNIT, time.monotonic()
        ):
            self.refused += 1
            return
        try:
            question = says.decode(data)
        except Malformed:
            self.refused += 1
            if says.is_other_version(data):
                self.reply(sender, number, self._other_version(data))
            return
        if not isinstance(question, says.JoinRequest):
            self.reply(sender, number, self.answer(question, seen))
        elif (
            self._allowance.consume_units(seen, JOIN_REQUEST_COST, time.monotonic())
            and not self._joins.locked()
        ):
            self.run(self._let(sender, number, question))
        else:
            self.reply(
                sender,
                number,
                says.JoinRejected("wait", "too many requests at this join server", ""),
            )

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Context that ends the present task after an error, but keeps the join server running.
        Examples are a full disk, missing descriptors, or a reply that is too large."""
        try:
            yield
        except (OSError, ValueError) as error:
            self.refused += 1
            if (told := f"{type(error).__name__}: {error}") not in self._stumbles and len(
                self._stumbles
            ) < STUMBLES_MAX:
                self._stumbles.add(told)
                self._say(
                    f"! the join server at {self.address} had an error, and continues: {told}"
                )

    def reply(self, sender: bytes, number: bytes, answer: says.Said | None) -> None:
        if answer is None:
            self.refused += 1
            return
        sent = asyncio.ensure_future(
            self._socket.send_multipart([sender, number, says.encode(answer)], zmq.NOBLOCK)
        )
        # Ignore errors: the client has disconnected, or does not read replies.
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _other_version(self, data: bytes) -> says.JoinRejected:
        theirs = data[3:4].decode("ascii", "replace")
        return says.JoinRejected(
            "version",
            f"this join server has protocol version {says.VERSION[3:].decode()}, you have {theirs}",
            "use the same version of gossip",
        )

    async def _let(self, sender: bytes, number: bytes, request: says.JoinRequest) -> None:
        async with self._joins:
            self.reply(sender, number, await self.welcome(request))

    async def ask(self, address: str, question: says.Question) -> says.Said:
        return await ask(self._context, address, question, ASK_S, self._key)
