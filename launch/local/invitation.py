"""What to type on another machine that is to join, and what has to be there for it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from gossip.config import RunConfig
from gossip.run import SWARM_KEY
from gossip.transport import is_loopback

JOIN_SERVERS_SAID = 3  # any one of them will do, as long as one is left


def invitation(
    head: str,
    config: RunConfig,
    join_servers: Sequence[str],
    key: Path | None,
    command: Sequence[str],
    only: str,
) -> list[str]:
    """The lines that tell others how to join; the last one can be pasted as it is.

    Args:
        head: What they begin with: how many there is room for.
        doors: Addresses of some; the first is knocked at first.
        key: Where the swarm key lies here. Another machine needs a copy, in the folder that the
            line is pasted in.
        command: The script and its arguments.
        only: What to say behind the line when the first door is at a loopback address.
    """
    here = is_loopback(join_servers[0].rpartition(":")[0].strip("[]"))
    words = [*(word for join_server in join_servers[1:] for word in ("--seed", join_server))]
    if key is not None:
        words = ["--key", str(key) if here else key.name, *words]
    elif not here:
        words = ["--insecure", *words]  # without a key no door elsewhere is knocked at
    for spec in (config.aggregator, config.topology, config.sender):
        words += ["--code", spec] if names_code(spec) else []  # who pastes the line has seen it
    line = shlex.join(["gossip", "join", *words, join_servers[0], "--", *command])
    if here:
        return [f"{head}: {line}   (on this machine; {only})"]
    if key is None:
        return [f"{head}: {line}"]
    return [f"{head}, on any machine with {command[0]} and a copy of {key}:", f"  {line}"]


def of_many_hosts(
    config: RunConfig, folder: Path, join_servers: Sequence[str], command: Sequence[str]
) -> list[str]:
    """What the launcher of many hosts says once all of them have a door; nothing when there is room
    for nobody else.

    Args:
        folder: Of the launcher, where the key lies.
        doors: Of all hosts; "": not yet.
    """
    more = config.room - config.peers
    if more <= 0 or not all(join_servers):
        return []
    key = folder / SWARM_KEY if config.keyed else None
    only = "for others give hosts an address=... that they reach"
    return invitation(
        f"room for {more} more", config, join_servers[:JOIN_SERVERS_SAID], key, command, only
    )


def names_code(spec: str) -> bool:
    """Whether a rule or topology is taken from a file or a module, as in ``my_rules.py:midpoint``,
    and not known by its name."""
    return any(
        tail and "=" not in tail[0] for stage in spec.split("+") for tail in [stage.split(":")[1:]]
    )
