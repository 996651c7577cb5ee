"""Hosts of a run: ``-H a,b:2`` on the command line, or a file in DeepSpeed's syntax.

nodea slots=2
# 2222 is the port of ssh, not a number of peers
user@nodeb:2222 slots=1 python=/opt/venv/bin/python workdir=/scratch/me

In a run with a plan, ``-H lab1=a,lab2=b`` or ``nodea peers=lab1`` assigns peers of the plan to
hosts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError, UnknownName

LOCAL = "localhost"
HOSTS_MAX = 256
# The name becomes a word of the command line of ssh, so it must not look like an option.
_NAME = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][\w.+-]*)@)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[A-Za-z0-9_][\w.-]*)"
    r"(?::(?P<number>\d+))?"
)
_PEER = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Host:
    """Host that runs some of the peers.

    Attributes:
        name: Name of the host for ssh, possibly an alias in the user's ssh config.
        slots: Number of its peers.
        user: User for ssh; "" means ssh's default.
        port: Port for ssh; None means ssh's default.
        python: Interpreter with gossip; "" means the path of the launcher's interpreter.
        workdir: Working directory of the peers; "" means the path of the launcher's working
            directory.
        address: Address that its peers listen on: an IP address, an interface, or a network such as
            10.0.0.0/8. "" means an address that the other hosts reach.
        peers: Names of its peers in the plan of a pipeline; () if the user gave none.
        numbers: Ids of its peers; () if the ids follow from the order of the hosts.
    """

    name: str
    slots: int = 1
    user: str = ""
    port: int | None = None
    python: str = ""
    workdir: str = ""
    address: str = ""
    peers: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether the host is this machine, which needs no ssh."""
        return self.name == LOCAL and not self.user and self.port is None

    @property
    def target(self) -> str:
        """Destination in ssh's syntax: ``user@name``, or ``name``."""
        return f"{self.user}@{self.name}" if self.user else self.name


OPTIONS = ("slots", "python", "workdir", "address", "peers")
assert set(OPTIONS) <= {field.name for field in fields(Host)}


def load(given: str) -> tuple[Host, ...]:
    """Parse a list of hosts, or a host file with the name ``given``.

    Raises: ConfigError: ``given`` is neither a list of hosts nor a file, or a line of the file is
    invalid.
    """
    path = Path(given)
    if not path.is_file() and ("/" in given or given.endswith(".txt")):  # never a host name
        raise ConfigError(
            f"there is no host file {given}",
            "name hosts directly, such as -H nodea,user@nodeb:2",
        )
    try:
        return parse_file(path.read_text("utf-8"), given) if path.is_file() else parse_list(given)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the hosts in {given}: {error}") from error


def parse_list(text: str) -> tuple[Host, ...]:
    """Parse ``a,user@b:2`` (hosts with numbers of peers) or ``lab1=a,lab2=user@b`` (peers of a plan
    with their hosts)."""
    found: list[Host] = []
    for word in text.split(","):
        peer, named, rest = word.strip().rpartition("=")
        user, name, number = _split(rest, "-H")
        if named:
            found = _with_peer(found, Host(name, user=user, peers=(peer,)), number)
            continue
        if number is not None and number > HOSTS_MAX:
            raise ConfigError(
                f"-H: {word} means {number} peers on one host",
                f"the port of ssh belongs in a host file: {name}:{number} slots=1",
            )
        found.append(Host(name, 1 if number is None else _slots(number, word, "-H"), user))
    return _checked(found, "-H")


def _with_peer(found: list[Host], host: Host, number: int | None) -> list[Host]:
    """Add the host of an entry such as ``lab1=a``. If the list already has the host, add the peer
    to it."""
    (peer,) = host.peers
    if number is not None:
        raise ConfigError(
            f"-H: {peer}={host.target}:{number} has one name for {number} peers",
            f"name each peer: {peer}={host.target},OTHER={host.target}",
        )
    if not _PEER.fullmatch(peer):
        raise ConfigError(
            f"-H: {peer!r} is not a name of a peer", "as in: -H lab1=nodea,lab2=me@nodeb"
        )
    known = next((each for each in found if each.peers and each.target == host.target), None)
    if known is None:
        return [*found, host]
    more = replace(known, peers=(*known.peers, peer), slots=known.slots + 1)
    return [more if each is known else each for each in found]


def parse_file(text: str, where: str) -> tuple[Host, ...]:
    """Parse a host file. Each line has the name of a host, and then options of the form
    ``name=value``. A # begins a comment."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        at = f"{where}:{number}"
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise ConfigError(f"{at}: {error}") from error
        if words:
            found.append(_parse_line(words, at))
    return _checked(found, where)


def _parse_line(words: Sequence[str], at: str) -> Host:
    user, name, port = _split(words[0], at)
    given: dict[str, Any] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(
                f"{at}: {word!r} is not an option", f"options follow the name: {name} slots=2"
            )
        if key not in OPTIONS:
            unknown = UnknownName("option", key, OPTIONS)
            raise ConfigError(f"{at}: {unknown}", unknown.hint)
        if key in given or not value:
            raise ConfigError(f"{at}: {key} is given {'twice' if value else 'no value'}")
        given[key] = value
    peers = tuple(given.pop("peers").split(",")) if "peers" in given else ()
    if bad := [peer for peer in peers if not _PEER.fullmatch(peer)]:
        raise ConfigError(f"{at}: {bad[0]!r} is not a name of a peer", f"{name} peers=lab1,lab2")
    slots = given.pop("slots", str(max(1, len(peers))))
    if port is not None and not 0 < port < 65536:
        raise ConfigError(
            f"{at}: there is no port {port}", f"{name} slots={port} starts that many peers"
        )
    return Host(name, _slots(slots, words[0], at), user, port, peers=peers, **given)


def _split(word: str, at: str) -> tuple[str, str, int | None]:
    match = _NAME.fullmatch(word)
    if match is None:
        raise ConfigError(
            f"{at}: {word!r} is neither a host nor a file",
            "as in: -H nodea,user@nodeb:2 or -H hosts.txt",
        )
    return (
        match["user"] or "",
        match["host"].strip("[]"),
        int(match["number"]) if match["number"] else None,
    )


def _slots(number: int | str, word: str, at: str) -> int:
    if not str(number).isdecimal() or not 0 < int(number) <= HOSTS_MAX:
        raise ConfigError(f"{at}: {word}: {number} is not a number of peers")
    return int(number)


def _checked(found: Sequence[Host], where: str) -> tuple[Host, ...]:
    if not found:
        raise ConfigError(f"{where}: there is no host in it")
    if len(found) > HOSTS_MAX:
        raise ConfigError(f"{where}: {len(found)} hosts; the maximum is {HOSTS_MAX}")
    names = [host.name for host in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"{where}: {twice[0]} is listed twice", f"more peers on one host: {twice[0]} slots=2"
        )
    return tuple(found)


def place(hosts: Sequence[Host]) -> dict[str, Sequence[int]]:
    """Return the ids of the peers of each host: its ``numbers``, or else consecutive ids."""
    placed: dict[str, Sequence[int]] = {}
    first = 0
    for host in hosts:
        placed[host.name] = host.numbers or range(first, first + host.slots)
        first += host.slots
    return placed
