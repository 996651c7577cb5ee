"""``gossip doctor --to``: tests the join server at an address, and reports the address at which the
server sees this machine."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import zmq.asyncio

from gossip.errors import ConfigError
from gossip.launch.registry import (
    JoinServerUnreachable,
    ask,
    join,
    join_messages as says,
    source_towards,
    split,
)
from gossip.launch.report import counted
from gossip.run import read_pair
from gossip.transport import KeyPair

from .findings import Finding

ASK_S = 2.0


def reach(address: str, key: Path | None = None) -> list[Finding]:
    """Return findings about the listener at ``HOST:PORT``. ``key`` is the file of the swarm key, if
    the run has keys.

    Raises: ConfigError: The address or the key is invalid.
    """
    try:
        host, port = split(address)
    except ValueError as error:
        raise ConfigError(
            str(error), "for example gossip doctor --to 10.0.0.7:7421, or [fd00::1]:7421"
        ) from None
    pair = read_pair(key) if key is not None else None
    try:
        number = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        said = f"the host {host!r} cannot be resolved: {error.strerror or error}"
        return [Finding("fail", "address", said, "use its address, such as 10.0.0.7")]
    where, source = join(number, port), source_towards(number)
    facts = {"address": where, "source": source}
    came = f"from {source}" if source else "there is no route from here"
    try:
        answer = asyncio.run(_query_run(where, pair))
    except JoinServerUnreachable as error:
        do = "does gossip ls on that host list the run, and did the run print this address?"
        if error.by_key:
            do = "--key runs/NAME/swarm.key: each run makes its own key; copy the key of this run"
        return [Finding("fail", "join server", f"{where} ({came}): {error}", do, facts)]
    if isinstance(answer, says.RunInfo):
        return _describe_run(where, came, answer)
    return [Finding("fail", "join server", f"{where} ({came}): {answer}", "", facts)]


async def _query_run(where: str, key: KeyPair | None) -> says.Said | str:
    context = zmq.asyncio.Context()
    try:
        answer = await ask(context, where, says.RunQuery(), ASK_S, key)
    finally:
        context.destroy(0)
    return f"{answer.message} ({answer.hint})" if isinstance(answer, says.JoinRejected) else answer


def _describe_run(where: str, came: str, here: says.RunInfo) -> list[Finding]:
    peers = counted(len(here.peers), "peer") if here.peers else "no peers yet"
    facts = {
        "run": here.run.hex(),
        "name": here.name,
        "state": here.state,
        "free": here.free,
        "seen": here.seen,
    }
    said = (
        f"{where} ({came}) belongs to run {here.name} ({here.state}, {peers}, room for {here.free} "
        f"more); it sees this machine as {here.seen}"
    )
    found = [Finding("ok", "join server", said, facts=facts)]
    if differences := says.Versions.here().differences(here.versions):
        said = f"this machine could not join: {', '.join(differences)}"
        found.append(Finding("fail", "versions there", said, "install the same versions on both"))
    return found
