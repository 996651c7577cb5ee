"""A launcher's join server: assigns ids to newcomers, and exchanges addresses of peers with other
join servers.

Each join server writes these addresses into ``seeds/`` of its run's folder, the only place where
the node of a peer reads addresses. Join servers visit each other (``remote_servers``). ``registry``
has their shared state, and the rules for accepting claims.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gossip.config import RunConfig
from gossip.errors import ConfigError
from gossip.launch.report import counted
from gossip.run import read_json
from gossip.transport import endpoint

from . import join_messages as says
from .join_endpoint import JoinEndpoint
from .join_socket import JoinSocket
from .registry import CLAIMED, JOIN_SERVER_ID_BYTES, PeerEntry, Registry, ServerEntry
from .registry_folder import RegistryFolder
from .remote_servers import RemoteServers

LOOK_S = 0.2
GOODBYE_S = 1.0
CLAIM_TRIES = 8
CLAIM_PAUSE_S = 0.1


@dataclass(frozen=True)
class JoinServerCallbacks:
    """Functions of the launcher that a join server calls.

    Attributes:
        let_in: Returns the local peers that rounds have admitted.
        lost: Called with the id of a local peer if another launcher has the same id.
        say: Called with lines for the user.
    """

    let_in: Callable[[], Collection[int]] = tuple
    lost: Callable[[int], None] = lambda peer: None
    say: Callable[[str], None] = lambda text: None


class JoinServer:
    """The join server of one launcher.

    Args:
        own: Ids of the peers that this launcher runs, with their first incarnations.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        own: Mapping[int, int],
        endpoint: JoinEndpoint,
        callbacks: JoinServerCallbacks | None = None,
    ) -> None:
        self._config, self._run_dir = config, folder
        self._own, self._callbacks = dict(own), callbacks or JoinServerCallbacks()
        self.join_server = endpoint.join_server or secrets.token_bytes(JOIN_SERVER_ID_BYTES)
        self._folder = RegistryFolder(folder, self.join_server)
        self.key_file = endpoint.key
        if config.keyed and endpoint.key is None:
            missing = f"{folder}/swarm.key is missing: a join server of a run with keys needs it"
            raise ConfigError(missing, "copy it there, for you alone (chmod 600)")
        insecure = config.insecure or endpoint.key is not None
        self.socket = JoinSocket(endpoint, config.host, insecure, self._callbacks.say)
        self._versions = says.Versions.here()
        self._draw = random.Random(self.join_server).randrange
        self._to_meet = list(endpoint.seeds)
        self.goodbye_s = GOODBYE_S

    async def open(self) -> None:
        """Open the join server. Raises: ConfigError, AddressInUse: It cannot listen at its
        address."""
        self.socket.open()
        local = ServerEntry(self.join_server, self.address, self._folder.place())
        self.keeper = Registry(local, self._own, self._config.peers, self._config.peers_max)
        self.remote_servers = RemoteServers(
            self._config.run_id, self.keeper, self.socket, self._learn
        )
        self._folder.announce(local)
        self.meet(self._to_meet)
        self._publish_changes()
        self.socket.serve(self._answer, self._welcome)
        self.socket.run(self._keep())

    @property
    def address(self) -> str:
        """``HOST:PORT``; "" if it is not open."""
        return self.socket.address

    async def close(self) -> None:
        """Close the join server, and notify the other join servers, for at most ``goodbye_s``
        seconds. Do nothing if it was never open."""
        if not self.address:
            return
        self._publish_changes()
        entry = self.keeper.end()
        await self.socket.stop()
        question = says.RegistryPush(
            self._config.run_id, entry, tuple(self.keeper.entries.values()), ()
        )
        # Also notify a join server that has not replied yet: it may have stored the address of this
        # join server.
        others = [
            other for other in self.remote_servers.all.values() if other.answered or not other.tries
        ]
        goodbyes = [self.socket.ask(other.address, question) for other in others]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                asyncio.gather(*goodbyes, return_exceptions=True), self.goodbye_s
            )
        await self.socket.close()
        self._folder.withdraw()

    # --- requests of others -----------------------------------------------------------------------

    def _answer(self, question: says.Said, seen: str) -> says.Said | None:
        """Return the reply to a request; None if the message is not a request."""
        now, keeper = time.monotonic(), self.keeper
        match question:
            case says.RunQuery():
                here = [
                    peer
                    for peer, entry in sorted(keeper.entries.items())
                    if entry.progress > CLAIMED and not entry.ended
                ]
                free = len(keeper.free(now))
                run, name = self._config.run_id, self._config.name
                code = self._code()
                return says.RunInfo(
                    run, name, keeper.state, tuple(here), free, seen[:80], self._versions, *code
                )
            case says.ProposeIds() | says.RegistryPull() | says.RegistryPush() if (
                question.run != self._config.run_id
            ):
                return says.JoinRejected(
                    "run",
                    f"this join server belongs to run {self._config.name}, not yours",
                    "",
                )
            case says.ProposeIds():
                return says.GrantedIds(tuple(keeper.consider(question.entries, now)))
            case says.RegistryPull():
                self._learn((), (question.sender,))
                digest = keeper.digest()
                if digest == question.digest:
                    return says.RegistryState(keeper.local, digest, (), ())
                return says.RegistryState(
                    keeper.local, digest, tuple(keeper.entries.values()), keeper.announced_servers
                )
            case says.RegistryPush():
                self._learn(question.entries, (question.sender, *question.join_servers))
                self.remote_servers.make_sure(question.sender, question.entries)
                return says.RegistryState(keeper.local, keeper.digest(), (), ())
            case _:
                return None

    # --- newcomers --------------------------------------------------------------------------------

    async def _welcome(self, request: says.JoinRequest) -> says.JoinAccepted | says.JoinRejected:
        config, keeper = self._config, self.keeper
        if differences := self._versions.differences(request.versions):
            return says.JoinRejected(
                "version",
                f"different versions: {'; '.join(differences)}",
                "install the versions of the swarm",
            )
        if keeper.state == "over":
            return says.JoinRejected(
                "over", f"the run {config.name} is over", "start another: gossip run"
            )
        if keeper.state == "not begun":
            return says.JoinRejected(
                "wait", f"the run {config.name} has not begun", "wait until its peers have started"
            )
        if config.room <= config.peers:
            first = f"the run {config.name} has room for its {config.peers} first peers only"
            return says.JoinRejected("full", first, f"gossip run --room {2 * config.peers} ...")
        if request.join_server in keeper.join_servers:
            return says.JoinRejected(
                "wait",
                "another join server has the same id",
                "try again: the id is random",
            )
        if (
            len(request.join_server) != JOIN_SERVER_ID_BYTES
            or not 1 <= request.count <= config.peers_max
        ):
            return says.JoinRejected(
                "full",
                f"{counted(request.count, 'newcomer')} at once",
                f"the run {config.name} has room for {config.peers_max}",
            )
        ids = await self.claim(request.join_server, request.count)
        if ids is None:
            free = len(keeper.free(time.monotonic()))
            requested = f"{request.count} {'was' if request.count == 1 else 'were'} to join"
            message = (
                f"the run {config.name} has room for {counted(config.peers_max, 'peer')} at a "
                f"time: {requested}, "
            )
            hint = (
                "a peer that leaves or is killed makes room; one whose launcher was killed does not"
            )
            return says.JoinRejected("full", f"{message}and there is room for {free}", hint)
        # Whether the newcomer uses keys must not depend on whether this launcher listens on
        # loopback.
        keys = None if config.insecure else config.keyed
        # Only the name of the list of allowed peers is sent: each machine has its own list.
        allowed = Path(config.allowed).name
        given = config.model_copy(
            update={"run_dir": "", "host": "127.0.0.1", "keys": keys, "allowed": allowed}
        )
        return says.JoinAccepted(
            config.run_id,
            tuple(sorted(ids.items())),
            given.model_dump_json().encode(),
            tuple(keeper.entries.values()),
            keeper.announced_servers,
        )

    def _code(self) -> tuple[tuple[str, ...], str, str]:
        """Return the command of the local peers (from the script on), its folder and the git
        commit. Command and folder are empty if they are not recorded, or too long for a message."""
        found = read_json(self._run_dir / "command.json") or {}
        code = (read_json(self._run_dir / "environment.json") or {}).get("code")
        commit = str(code["commit"])[:80] if isinstance(code, dict) and "commit" in code else ""
        words, where = found.get("command"), str(found.get("folder", ""))
        if (
            not isinstance(words, list)
            or not 3 <= len(words) <= says.WORDS_MAX
            or len(where) > says.WORD_MAX
        ):
            return (), "", commit
        command = tuple(map(str, words[2:]))
        return (
            (command, where, commit)
            if all(len(word) <= says.WORD_MAX for word in command)
            else ((), "", commit)
        )

    async def claim_own(self) -> tuple[int, int] | None:
        """Return an id for a newcomer of this launcher, and its incarnation. Return None if no id
        is free."""
        taken = await self.claim(self.join_server, 1)
        return None if taken is None else next(iter(taken.items()))

    async def claim(self, owner: bytes, count: int) -> dict[int, int] | None:
        """Return ids for newcomers, with their first incarnations. No other reachable join server
        assigns these ids. Return None if too few ids are free."""
        keeper = self.keeper
        for attempt in range(CLAIM_TRIES):
            self._publish_changes()  # A peer may just have claimed an id in the folder.
            proposal = keeper.propose(
                owner, count, time.monotonic(), self._draw if attempt else None
            )
            if proposal is None:
                return None
            question = says.ProposeIds(self._config.run_id, proposal)
            asked = (self.socket.ask(address, question) for address in self.remote_servers.there)
            answers = await asyncio.gather(*asked, return_exceptions=True)
            granted = [answer.peers for answer in answers if isinstance(answer, says.GrantedIds)]
            if keeper.agreed(proposal, granted) and self._folder.claim(proposal):
                self.remote_servers.spread(keeper.assign_ids(proposal, time.monotonic()))
                return {entry.peer: entry.incarnation for entry in proposal}
            await asyncio.sleep(CLAIM_PAUSE_S * (1 + self._draw(8)))
        return None

    # --- known peers ------------------------------------------------------------------------------

    @property
    def missing(self) -> list[int]:
        """Initial peers without a known address."""
        return self.keeper.missing()

    def is_met(self, peer: int) -> bool:
        """Whether the join server of a peer answers, or the peer has ended."""
        entry = self.keeper.entries.get(peer)
        return entry is not None and (entry.ended or self.remote_servers.answers(entry.owner))

    def troubles(self) -> list[str]:
        """Return a line on each join server that does not answer, with its last error."""
        return self.remote_servers.troubles()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.socket.authenticate()
            with self.socket.going_on():
                self._publish_changes()
                expired = self.keeper.expire(time.monotonic())
                self._folder.write(expired, self.keeper)
                self.remote_servers.spread(expired)

    def _publish_changes(self) -> None:
        """Read changes in the folder, and send them to the other join servers."""
        for news in self._folder.poll_changes(self.keeper, self._callbacks.let_in()):
            self.remote_servers.spread(news)
        self.meet(self._folder.other_join_servers())

    def _learn(
        self, entries: Iterable[PeerEntry], join_servers: Iterable[ServerEntry], source: bytes = b""
    ) -> None:
        """Store claims of another join server in the folder. They are not forwarded: every join
        server sends its own changes to all others. A join server that missed changes finds the
        difference by a pull.

        Args:
            source: Id of the join server that replied with the claims at its own address; b"" if
                any process may have sent them.
        """
        news = self.keeper.merge_claims(entries, join_servers, source, self.remote_servers.answers)
        for join_server in news.join_servers:
            self._visit(join_server.address, named=True)
        for join_server in news.closed:
            self.remote_servers.make_sure(join_server, ())
        self._folder.write(news, self.keeper)
        for peer in news.lost:
            self._callbacks.lost(peer)

    # --- other join servers --------------------------------------------------------------------

    def meet(self, addresses: Iterable[str]) -> None:
        """Visit these join servers, too, once this join server is open."""
        if not self.address:
            self._to_meet += addresses
            return
        for address in addresses:
            self._visit(address)

    def _visit(self, address: str, named: bool = False) -> None:
        if address != self.address and endpoint(f"tcp://{address}", self.socket.insecure):
            self.remote_servers.visit(address, named)
