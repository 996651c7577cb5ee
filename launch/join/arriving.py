"""``gossip join HOST:PORT``: requests ids and settings from a run's join server, and makes a run
folder on this machine."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import secrets
import shlex
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import zmq.asyncio
from pydantic import ValidationError

from gossip.config import RunConfig
from gossip.errors import ConfigError, NobodyAnswers, Refused
from gossip.launch.local import Program, code_of, feasible, own_address
from gossip.launch.registry import (
    JOIN_SERVER_ID_BYTES,
    JoinEndpoint,
    JoinServerUnreachable,
    ask,
    join,
    join_messages as says,
    source_towards,
    split,
)
from gossip.launch.report import RUNS, counted
from gossip.run import (
    SWARM_KEY,
    code_version,
    create_claim,
    fingerprint,
    read_pair,
    write_pair,
    write_seed,
)
from gossip.transport import KeyPair, is_loopback

from .own_folder import furnish

ASK_S = 5.0
AGAIN_S = 0.5
PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class JoinTicket:
    """Parameters of newcomers that join by an address.

    Attributes:
        join_servers: Addresses, HOST:PORT. One server that replies is enough.
        advertise: Address of this machine, an interface or a network; "" means the local address of
            the route to the join server.
        port: Port of this machine's join server.
        run_dir: Folder to make; None means runs/NAME, with a number appended if that exists.
        code: Files and modules of the run's settings that the user allows to run here. They are
            spelled as in the settings.
    """

    join_servers: tuple[str, ...]
    count: int = 1
    key: Path | None = None
    insecure: bool = False
    advertise: str = ""
    port: int = 0
    run_dir: Path | None = None
    patience_s: float = PATIENCE_S
    code: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinSetup:
    """A run folder on this machine, and the parameters of its supervisor."""

    config: RunConfig
    newcomers: dict[int, int]
    endpoint: JoinEndpoint
    program: Program


def arrive(
    ticket: JoinTicket,
    own: Program | None,
    say: Callable[[str], None],
) -> JoinSetup:
    """Prepare the start of the newcomers. Check this machine before requesting ids.

    Raises:
        NobodyAnswers: No join server replies.
        Refused: The key or a version differs from that of the swarm.
        ConfigError: The run is over or full, the script is missing here, or the other peers could
            not reach this machine's address.
    """
    return asyncio.run(_JoinClient(ticket, say).arrive(own))


class _JoinClient:
    def __init__(self, ticket: JoinTicket, say: Callable[[str], None]) -> None:
        self._ticket, self._say = ticket, say
        self._key = _key_in(ticket.key) if ticket.key is not None else None
        self._join_server = secrets.token_bytes(JOIN_SERVER_ID_BYTES)
        self._tried: dict[str, tuple[JoinServerUnreachable, int]] = {}
        self._began = time.monotonic()

    async def arrive(self, own: Program | None) -> JoinSetup:
        join_servers = self._resolved()
        self._context = zmq.asyncio.Context()
        try:
            at, here = await self._answered(join_servers, says.RunQuery())
            assert isinstance(here, says.RunInfo)
            program = self._program(here, at, own)
            if difference := differs(here.commit, program.folder):
                self._say(difference)
            host = self._own_host(at, here.seen)
            feasible.check_memory(self._ticket.count)
            join_request = says.JoinRequest(
                self._join_server, self._ticket.count, says.Versions.here()
            )
            at, welcome = await self._answered([at, *join_servers], join_request)
            assert isinstance(welcome, says.JoinAccepted)
        finally:
            self._context.destroy(0)
        config = self._settled(welcome, host, here.name)
        others = [
            join_server.address
            for join_server in welcome.join_servers
            if not join_server.ended and join_server.join_server != self._join_server
        ]
        self._furnish(config, welcome, program)
        endpoint = JoinEndpoint(
            tuple(dict.fromkeys([at, *others])), host, self._ticket.port, self._join_server
        )
        return JoinSetup(config, dict(welcome.ids), endpoint, program)

    # --- join servers --------------------------------------------------------------------------

    def _resolved(self) -> list[str]:
        """Return the addresses of the join servers with names resolved. Raises: ConfigError: An
        address is invalid, or requires a key."""
        found: list[str] = []
        for address in self._ticket.join_servers:
            try:
                name, port = split(address)
                answers = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            except ValueError as error:
                raise ConfigError(
                    str(error),
                    "use the address that the run has printed: gossip join 10.0.0.5:7421",
                ) from None
            except OSError as error:
                raise ConfigError(
                    f"there is no host {address}: {error.strerror}", "use its IP address"
                ) from None
            numbers = dict.fromkeys(str(answer[4][0]) for answer in answers)
            if (
                self._key is None
                and not self._ticket.insecure
                and not all(map(is_loopback, numbers))
            ):
                raise ConfigError(
                    f"refused to join at {address} without a key: the process that replies "
                    "there is not authenticated",
                    "--key FILE (runs/NAME/swarm.key of the run), or --insecure if the run has "
                    "no keys",
                )
            found += [join(number, port) for number in numbers]
        return list(dict.fromkeys(found))

    async def _answered(
        self, join_servers: Sequence[str], question: says.Question
    ) -> tuple[str, says.Said]:
        """Send ``question`` until a join server accepts it, for at most ``patience_s``. Return the
        address and the reply of that server.

        Raises: NobodyAnswers, Refused, ConfigError.
        """
        waits = ""
        while True:
            for address in dict.fromkeys(join_servers):
                try:
                    answer = await ask(self._context, address, question, ASK_S, self._key)
                except JoinServerUnreachable as silence:
                    self._tried[address] = (silence, self._tried.get(address, (silence, 0))[1] + 1)
                    continue
                if not isinstance(answer, says.JoinRejected):
                    return address, answer
                message, hint = printable(answer.message), printable(answer.hint)
                if answer.kind == "version":
                    raise Refused(f"refused to join: {message}", hint)
                if answer.kind != "wait":
                    raise ConfigError(message, hint)
                waits = message
            if all(silence.by_key for silence, _ in self._tried.values()) and not waits:
                raise self._refused_by_key()
            if (waited_s := time.monotonic() - self._began) > self._ticket.patience_s:
                if waits:
                    raise ConfigError(
                        f"{waits} (tried for {waited_s:.0f} s)", "try again in a moment"
                    )
                raise NobodyAnswers(
                    ", ".join(self._ticket.join_servers), self._attempts(), waited_s
                )
            await asyncio.sleep(AGAIN_S)

    def _attempts(self) -> tuple[str, ...]:
        lines = []
        for address, (silence, times) in self._tried.items():
            source = source_towards(split(address)[0])
            lines.append(
                f"{address} from {source or 'no address: there is no route'}: {silence} (x{times})"
            )
        return tuple(lines)

    def _refused_by_key(self) -> Refused:
        where = ", ".join(self._ticket.join_servers)
        copy = "copy runs/NAME/swarm.key from a machine of the run, as with scp, and add --key FILE"
        if self._key is None:
            return Refused(
                f"refused to join at {where}: it needs a key, or is not a join server of gossip",
                copy,
            )
        own = fingerprint(self._key.public)
        return Refused(
            f"refused to join at {where}: wrong swarm key (yours is {own}), or it has none", copy
        )

    # --- this machine -----------------------------------------------------------------------------

    def _program(self, here: says.RunInfo, at: str, own: Program | None) -> Program:
        """Return the program that the user names, never one that a remote join server names.

        Raises: ConfigError: The user names no program, or it cannot be run.
        """
        if own is None:
            others = printable(shlex.join(here.command) or "train.py")
            raise ConfigError(
                "to join by an address, name the script: a join server must not choose what runs "
                f"here. The other peers run {others}",
                f"gossip join {at} -- {others}",
            )
        own.check()
        return own

    def _own_host(self, at: str, seen: str) -> str:
        """Return the address that the local peers listen on, and at which the other peers must
        reach them. Raises: ConfigError."""
        host = split(at)[0]
        own = (
            own_address(self._ticket.advertise) if self._ticket.advertise else source_towards(host)
        )
        if is_loopback(own) != is_loopback(host):
            raise ConfigError(
                f"the join server is at {host} but this machine's peers would be at {own}: the "
                "other peers could not reach them",
                "leave out --advertise, or join at an address of the advertised network",
            )
        if seen and seen != own:
            why = (
                "as set by --advertise"
                if self._ticket.advertise
                else "the network between them translates addresses"
            )
            self._say(
                f"! this machine's address is {own}, but the join server at {at} saw {seen}: "
                f"{why}. The other peers connect to {own}"
            )
        return own

    def _settled(self, welcome: says.JoinAccepted, host: str, name: str) -> RunConfig:
        """Return the run's settings for this machine. Raises: ConfigError."""
        folder = self._ticket.run_dir or _free(Path(RUNS), name)
        try:
            given = RunConfig.model_validate_json(welcome.config)
            if given.insecure and not (self._ticket.insecure or is_loopback(host)):
                raise ConfigError(
                    f"the run {given.name} has no keys",
                    "use --insecure if all machines on the network may join",
                )
            allowed = self._own_list(given.allowed)
            settled = {
                **given.model_dump(),
                "host": host,
                "run_dir": str(folder.resolve()),
                "allowed": allowed,
            }
            self._check(welcome, config := RunConfig.model_validate(settled))
            return config
        except ValidationError as error:
            first = error.errors()[0]["msg"]
            raise ConfigError(
                f"the join server sent settings that are not valid here: {first}",
                "install the same version of gossip",
            ) from None

    def _own_list(self, theirs: str) -> str:
        """Return the path of the local user's list of allowed peers; "" if there is none.
        ``theirs`` is the list of the join server. It only appears in a warning: if this machine
        used it, the server could admit any peer."""
        own = os.environ.get("GOSSIP_ALLOWED", "")
        if theirs and not own:
            list_ = (
                f"the run has a list of allowed peers ({printable(theirs)}), and this machine has "
                "none"
            )
            self._say(
                f"! {list_}: peers here admit every peer with a seed file; GOSSIP_ALLOWED=FILE "
                "sets a list of your own"
            )
        if theirs and not os.environ.get("GOSSIP_KEY"):
            self._say(
                "! peers with that list reject the peers here until their key is on it: set "
                "GOSSIP_KEY=FILE (from gossip keygen)"
            )
        return str(Path(own).resolve()) if own else ""

    def _check(self, welcome: says.JoinAccepted, config: RunConfig) -> None:
        """Check the reply of a join server. Raises: ConfigError: The invitation would start more
        peers than requested, or other code."""
        ids, asked = dict(welcome.ids), self._ticket.count
        if len(ids) != asked or not all(0 <= peer < config.peers_max for peer in ids):
            raise ConfigError(
                f"the join server sent {counted(len(ids), 'id')} where {asked} "
                f"{'was' if asked == 1 else 'were'} requested",
                "try another join server",
            )
        if config.run_id != welcome.run or config.f is None:
            raise ConfigError(
                "the join server sent settings of another run, or of a run that has not begun",
                "try another join server",
            )
        if strange := [name for name in code_of(config) if name not in self._ticket.code]:
            raise ConfigError(
                f"the run uses code that is not gossip's: {printable(', '.join(strange))}",
                "read it, install it here, and agree: "
                + " ".join(f"--code {shlex.quote(printable(name))}" for name in strange),
            )

    def _furnish(self, config: RunConfig, welcome: says.JoinAccepted, program: Program) -> None:
        """Make the folder, with the addresses of the peers. Raises: RunExists, ConfigError."""
        folder = furnish(config, program)
        if self._key is not None:
            write_pair(folder / SWARM_KEY, self._key)
        (folder / "seeds").mkdir()
        for entry in welcome.entries:
            # Otherwise a peer that joins by this folder could claim the same id.
            create_claim(folder / "seeds", entry.peer, entry.incarnation)
            # The ids of the newcomers are claimed but have no address yet.
            if (seed := entry.seed) is not None:
                write_seed(folder / "seeds", seed)


def _key_in(path: Path) -> KeyPair:
    """Read the swarm key. Raises: ConfigError: The file contains no key, or must be copied to this
    machine first."""
    if not path.exists():
        copy = (
            "copy it from the machine that printed the command, as with scp, to "
            f"{path.absolute()}, readable only by you"
        )
        raise ConfigError(f"the swarm key {path} does not exist here", copy)
    return read_pair(path)


def differs(commit: str, code: Path) -> str:
    """Return a warning if the commit of the code here differs from that of the other hosts;
    otherwise "". ``commit`` comes from a remote join server, so it is untrusted."""
    own = code_version(code)
    if not commit or own is None or own["commit"] == commit:
        return ""
    return (
        f"! the code here is at commit {str(own['commit'])[:12]}, that of the other hosts at "
        f"{printable(commit)[:12]}"
    )


def printable(text: str) -> str:
    """Replace the characters of a remote text that could control the terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _free(folder: Path, name: str) -> Path:
    """Return an unused path in ``folder``, named after the run. The name comes from a remote join
    server."""
    plain = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII).lstrip(".") or "run"
    tails = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    return next(path for tail in tails if not (path := folder / f"{plain}{tail}").exists())
