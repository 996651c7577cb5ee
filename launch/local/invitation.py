"""Command with which another machine joins a run, and the files that this machine needs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gossip.config import RunConfig
from gossip.faults import ByzantineFault
from gossip.run import SWARM_KEY
from gossip.transport import is_loopback

JOIN_SERVERS_SAID = 3  # One reachable server is enough.


@dataclass(frozen=True)
class Invitation:
    """Data for the command with which other machines join a run.

    Attributes:
        join_servers: Addresses of some join servers. The command contacts the first one first.
        key: Path of the swarm key on this machine. Another machine needs a copy in the working
            directory of the command.
        command: The script and its arguments.
    """

    config: RunConfig
    join_servers: Sequence[str]
    key: Path | None
    command: Sequence[str]

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the first join server."""
        return is_loopback(self.join_servers[0].rpartition(":")[0].strip("[]"))

    @property
    def line(self) -> str:
        """Command to type on the other machine."""
        first, *others = self.join_servers
        words = [word for other in others for word in ("--seed", other)]
        if self.key is not None:
            words = ["--key", str(self.key) if self.is_local else self.key.name, *words]
        elif not self.is_local:
            # Without a key, gossip join needs --insecure to contact a server on another machine.
            words = ["--insecure", *words]
        for spec in code_of(self.config):
            # The line shows the code, so that the user sees it before running the command.
            words += ["--code", spec]
        return shlex.join(["gossip", "join", *words, first, "--", *self.command])

    def format_lines(self, head: str, only: str) -> list[str]:
        """Return the lines of the invitation. The last line contains the command.

        Args:
            head: Beginning of the first line, with the number of peers that may join.
            only: Hint that is added if the command works only on this machine.
        """
        if self.is_local:
            return [f"{head}: {self.line}   (on this machine; {only})"]
        if self.key is None:
            return [f"{head}: {self.line}"]
        needs = f"{self.command[0]} and a copy of {self.key}"
        return [f"{head}, on any machine with {needs}:", f"  {self.line}"]


def of_many_hosts(
    config: RunConfig, folder: Path, join_servers: Sequence[str], command: Sequence[str]
) -> list[str]:
    """Return the lines of the invitation to a run on many hosts. Return [] until every host has a
    join server, or if there is no room for more peers.

    Args:
        folder: Folder of the launcher, with the key.
        join_servers: Addresses of the join servers of all hosts; "" for a server that is not open
            yet.
    """
    more = config.room - config.peers
    if more <= 0 or not all(join_servers):
        return []
    key = folder / SWARM_KEY if config.keyed else None
    only = "for other machines, give hosts an address=... that they reach"
    invitation = Invitation(config, join_servers[:JOIN_SERVERS_SAID], key, command)
    return invitation.format_lines(f"room for {more} more", only)


def code_of(config: RunConfig) -> list[str]:
    """Return the rules, topologies, senders and attacks of a run that are the user's own code."""
    attacks = [f.attack for f in config.plan if isinstance(f, ByzantineFault) and not f.built_in]
    specs = [config.aggregator, config.topology, config.sender, *attacks]
    return [spec for spec in specs if names_code(spec)]


def names_code(spec: str) -> bool:
    """Whether ``spec`` names code in a file or a module, such as ``my_rules.py:midpoint``, instead
    of something built in."""
    return any(
        tail and "=" not in tail[0] for stage in spec.split("+") for tail in [stage.split(":")[1:]]
    )
