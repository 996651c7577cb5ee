"""``python -m gossip_clusters.kubernetes.peer``: a pod of an indexed job that shares no volume with
other pods.

The settings and the swarm key are files. Each pod has a stable name, and all pods have a join
server at the same port. A new pod tries all names. Any pod that replies sends the addresses of all
others, so no pod is special. A restarted pod has the same index and usually another address. It
requests the last incarnation of its peer from the other pods, and uses the next one.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path

import zmq.asyncio

from gossip.config import RunConfig
from gossip.errors import ConfigError, GossipError
from gossip.launch.join import furnish, settings
from gossip.launch.local import Program, Supervisor, feasible, runs
from gossip.launch.registry import (
    JOIN_SERVER_ID_BYTES,
    JUMP_MAX,
    JoinEndpoint,
    RegistryFolder,
    ServerEntry,
    ask,
    join,
    join_messages as says,
)
from gossip.launch.report import PlainScreen, counted, print_error
from gossip.run import SWARM_KEY, Task, number, own_address, parse_pair, write_pair
from gossip.transport import KeyPair

from .files import CONFIG, names_of

ASK_S = 2.0
NAMES_S = 5.0  # Time limit of the lookup of all names together.
FIND_S = 15.0  # Time for a restarted pod to find another pod that has its last incarnation.
# A restarted pod that finds no other pod in this time ends. The job restarts it later.
BACK_S = 120.0
LOOK_S = 1.0
AGAIN_S, AGAIN_MAX_S = 5.0, 60.0
"""Seconds until the name of a missing peer is looked up for the first time, and the longest
interval between two lookups. The interval doubles after each lookup."""


def train(given: Path, own: Path, name: str, port: int, words: Sequence[str]) -> int:
    """Run a pod until it ends. Return its exit code.

    Args:
        given: Folder with the settings and the key.
        own: Folder in which this pod creates the folder of its run.
        name: Name of the job and of its service.
    """
    peer = number(os.environ, "JOB_COMPLETION_INDEX")
    failures = failed_before(os.environ)
    config = settings(given / CONFIG, os.environ.get("JOB_UID", ""), own / name)
    if peer >= config.peers:
        raise ConfigError(
            f"this pod has the index {peer}, but the run has {counted(config.peers, 'peer')}",
            "apply the manifest without changes",
        )
    task = Task("Kubernetes", name, peer, config.peers, one_host=False, comes_back=True)
    listen = own_address(task, config) or config.host  # A single peer needs no address.
    feasible.check_memory(1)
    program = Program.of(words)
    folder = furnish(config, program)
    key = copy_swarm_key(given / SWARM_KEY, folder) if config.keyed else None
    screen = PlainScreen(every_s=10.0)
    join_server_id = secrets.token_bytes(JOIN_SERVER_ID_BYTES)
    join_server = ServerEntry(
        join_server_id, join(listen, port), RegistryFolder(folder, join_server_id).place()
    )
    others = [other for other in range(config.peers) if other != peer]
    names = dict(zip(others, names_of(name, others), strict=True))
    question = says.RegistryPull(config.run_id, join_server, b"")
    within_s = FIND_S if failures else 0.0
    found, former = asyncio.run(
        find(question, key, peer, lambda: resolve_names(names.values(), port), within_s)
    )
    incarnation = max(failures, former + 1)
    if incarnation:
        config = coming_back(config)
        config.dump(folder / CONFIG)
    life = f", incarnation {incarnation}" if incarnation else ""
    screen.print_line(
        f"{config.name}: peer {peer} of {config.peers}{life} at {join_server.address}, "
        f"{len(found)} of the others found by name"
    )
    supervisor = Supervisor(
        config,
        program,
        screen,
        {"GOSSIP_LISTEN": listen},
        share={peer: incarnation},
        endpoint=JoinEndpoint(
            found, host=listen, port=port, join_server=join_server_id, invites=False
        ),
    )
    outcome = runs.supervise(supervisor, keep_meeting(supervisor, names, port))
    return runs.finish(folder, outcome, screen, as_json=False)


def failed_before(told: Mapping[str, str]) -> int:
    """Return how often this index has failed. Failures that the job does not limit count, too."""
    words = [told.get(name, "") for name in ("JOB_FAILURES", "JOB_FAILURES_IGNORED")]
    return sum(int(word) for word in words if word.isascii() and word.isdecimal())


def coming_back(config: RunConfig) -> RunConfig:
    """Return the settings of a restarted pod, which receives the state from other peers. Only if
    most peers are present without a state, as after the loss of all pods, the run begins again. A
    single pod must not begin it again, because the other peers may have completed the run."""
    patience_s = config.patience_s if config.min_peers else BACK_S
    return config.model_copy(
        update={
            "min_peers": max(config.min_peers or 0, config.peers // 2 + 1),
            "patience_s": min(patience_s, config.start_timeout_s),
            "start_timeout_s": min(BACK_S, config.start_timeout_s),
        }
    )


def copy_swarm_key(path: Path, folder: Path) -> KeyPair:
    """Copy the swarm key to a file in the folder of the run that only its owner can read. The
    permissions of files from a secret cannot be changed.

    Raises: ConfigError: The key cannot be read, or is invalid.
    """
    try:
        pair = parse_pair(path.read_bytes(), str(path))
    except OSError as error:
        hint = (
            "gossip kubernetes --user UID: a secret's files are readable by the user that the "
            "manifest names"
        )
        raise ConfigError(f"cannot read the swarm key {path}: {error.strerror}", hint) from error
    write_pair(folder / SWARM_KEY, pair)
    return pair


async def find(
    question: says.RegistryPull,
    key: KeyPair | None,
    peer: int,
    pods: Callable[[], Awaitable[list[str]]],
    within_s: float,
) -> tuple[tuple[str, ...], int]:
    """Request the last incarnation of this peer from all pods with a name. Repeat this until a pod
    replies or ``within_s`` seconds have passed.

    Args:
        question: Request in the name of the local join server, which starts later.
        pods: Returns the addresses of all pods with a name.
    Returns: Addresses of the pods, and the last known incarnation, or -1 if none is known.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + within_s
    context = zmq.asyncio.Context()
    try:
        while True:
            addresses = await pods()
            asked = (ask(context, address, question, ASK_S, key) for address in addresses)
            answers = await asyncio.gather(*asked, return_exceptions=True)
            told = [answer for answer in answers if isinstance(answer, says.RegistryState)]
            if told or clock() >= until:
                lives = [
                    entry.incarnation
                    for answer in told
                    for entry in answer.entries
                    if entry.peer == peer
                ]
                return tuple(addresses), max(
                    [life for life in lives if life <= JUMP_MAX], default=-1
                )
            await asyncio.sleep(LOOK_S)
    finally:
        context.destroy(0)


async def resolve_names(names: Collection[str], port: int) -> list[str]:
    """Return ``HOST:PORT`` of the pods that the name server resolves within ``NAMES_S``."""
    asked = [asyncio.create_task(_resolve_name(name, port)) for name in names]
    if not asked:
        return []
    done, late = await asyncio.wait(asked, timeout=NAMES_S)
    for one in late:
        one.cancel()
    return list(dict.fromkeys(address for one in asked if one in done for address in one.result()))


async def _resolve_name(name: str, port: int) -> list[str]:
    try:
        rows = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except OSError:
        return []  # The pod does not exist yet, or has ended.
    return [join(str(row[4][0]).partition("%")[0], port) for row in rows]


class PodLookups:
    """Times at which the names of missing peers are looked up. The interval grows with the absence.
    New pods look up all names themselves.

    Args:
        names: Name of the pod of each other peer.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        # For each missing peer: time of the next lookup, and the interval after that lookup.
        self._next: dict[int, tuple[float, float]] = {}

    def due(self, is_here: Callable[[int], bool], now: float) -> list[str]:
        """Return the names that must be looked up now."""
        found = []
        for peer, name in self._names.items():
            if is_here(peer):
                self._next.pop(peer, None)
                continue
            at, rest_s = self._next.setdefault(peer, (now + AGAIN_S, AGAIN_S))
            if now >= at:
                rest_s = min(AGAIN_MAX_S, 2 * rest_s)
                self._next[peer] = now + rest_s, rest_s
                found.append(name)
        return found


async def keep_meeting(supervisor: Supervisor, names: Mapping[int, str], port: int) -> None:
    """Connect to newly resolved pods while a peer is missing or does not reply."""
    assert supervisor.join_server is not None
    join_server = supervisor.join_server
    clock = asyncio.get_running_loop().time
    sought = PodLookups(names)
    while True:
        await asyncio.sleep(LOOK_S)
        if join_server.address and (due := sought.due(join_server.is_met, clock())):
            join_server.meet(await resolve_names(due, port))


def main() -> int:
    given, own, name, port, *words = sys.argv[1:]
    try:
        return train(Path(given), Path(own), name, int(port), words)
    except GossipError as error:
        print_error(error)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
