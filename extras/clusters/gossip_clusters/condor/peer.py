"""``python -m gossip_clusters.condor.peer``: a job of HTCondor that shares no folder with other
jobs.

The settings and the swarm key are transferred with the job. The contact file has the addresses of
other jobs. If a job is evicted, it starts again with the next incarnation of its peer, and receives
the state from other peers. HTCondor returns the files of each incarnation with its job.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gossip.errors import ConfigError, GossipError
from gossip.launch.join import CONFIG, furnish, settings
from gossip.launch.local import Program, Supervisor, feasible, runs
from gossip.launch.registry import JoinEndpoint
from gossip.launch.report import RUNS, PlainScreen, print_error
from gossip.launch.schedulers import condor_task
from gossip.run import SWARM_KEY, Seed, Task, answers, own_address, read_seed

from .contact import (
    COMES,
    DONE,
    Contact,
    ContactLine,
    NoContact,
    find_chirp,
    join_servers,
    next_incarnation,
)

LOOK_S = 0.5
# Interval between two accesses to the contact file while peers are missing or the file is not
# accessible. It is long because all jobs access the same machine.
AGAIN_S = 10.0


def train(contact_path: str, words: Sequence[str]) -> int:
    """Run a peer until it ends. Return the exit code of the job."""
    task = condor_task(os.environ)
    if task is None:
        raise ConfigError(
            "this is not a job of HTCondor with several peers", "gossip condor writes such a job"
        )
    results = Path(RUNS) / task.run
    results.mkdir(parents=True, exist_ok=True)
    contact = Contact(contact_path, task.run, find_chirp())
    contact.add(task.peer, 0, COMES)
    lines = contact.read()
    incarnation = next_incarnation(lines, task.peer)
    check_going_on(task, lines, incarnation)
    config = settings(Path(CONFIG), task.run, Path.cwd() / f"gossip-{task.peer}")
    key = own_key()
    listen = own_address(task, config)
    feasible.check_memory(1)
    program = Program.of(words)
    folder = furnish(config, program)
    screen = PlainScreen(every_s=10.0)
    life = f", incarnation {incarnation}" if incarnation else ""
    screen.print_line(
        f"{config.name}: peer {task.peer} of {task.peers}{life} at {listen}, {task.run}, contact "
        f"file {contact_path}"
    )
    supervisor = Supervisor(
        config,
        program,
        screen,
        {"GOSSIP_LISTEN": listen},
        share={task.peer: incarnation},
        endpoint=JoinEndpoint(join_servers(lines), host=listen, key=key, invites=False),
        files=f"-{task.peer}",
    )
    try:
        keeping = keep_in_contact(supervisor, contact, task.peer, incarnation)
        code = runs.supervise(supervisor, keeping).exit_code
    finally:
        bring_back(folder, results, {task.peer: incarnation})
    if code == 0:
        with contextlib.suppress(NoContact):  # The peer has finished, even if no other reads this.
            contact.add(task.peer, incarnation, DONE)
    return code


async def keep_in_contact(
    supervisor: Supervisor, contact: Contact, peer: int, incarnation: int
) -> None:
    """Write the address of the local join server, and then read the addresses of the others.
    Because of this order, at least one of two jobs reads the other job's address. Repeat this while
    peers are missing. If the trainer has restarted its node, write the new incarnation."""
    assert supervisor.join_server is not None
    join_server = supervisor.join_server
    told = -1
    tried = -1
    clock = asyncio.get_running_loop().time
    again_at = 0.0
    while True:
        await asyncio.sleep(LOOK_S)
        seed = read_seed(supervisor.ongoing.folder / "seeds", peer)
        life = max(incarnation, seed.incarnation if seed is not None else 0)
        due = clock() >= again_at and (life > told or join_server.missing)
        if not join_server.address or not (life > tried or due):
            continue
        again_at, tried = clock() + AGAIN_S, life
        try:
            if life > told:
                await asyncio.to_thread(contact.add, peer, life, join_server.address)
                told = life
            join_server.meet(join_servers(await asyncio.to_thread(contact.read)))
        except NoContact as error:
            supervisor.ongoing.screen.print_line(f"! {error}")


def check_going_on(task: Task, lines: Sequence[ContactLine], incarnation: int) -> None:
    """Check that the run can continue. Raises: ConfigError: No other peer is left that could send
    its state."""
    others = [line for line in lines if line.peer != task.peer and line.what != COMES]
    done = sorted({line.peer for line in others if line.what == DONE})
    if (
        not others
        or not (done or incarnation)
        or any(
            answers(Seed(0, f"tcp://{join_server}", "", 0)) for join_server in join_servers(others)
        )
    ):
        return
    why = f"peers {', '.join(map(str, done))} finished" if done else "all of its peers were lost"
    raise ConfigError(f"the run {task.run} is over: {why}, and no peer answers", task.another)


def own_key() -> Path | None:
    """Return the path of the swarm key in the folder of this job. Its permissions are set here,
    because HTCondor copies the key with unspecified permissions."""
    path = Path(SWARM_KEY).resolve()
    if not path.is_file():
        return None
    path.chmod(0o600)
    return path


def bring_back(folder: Path, results: Path, peers: Mapping[int, int]) -> None:
    """Copy the files that users need to the folder that HTCondor returns. Their names contain the
    peer and the incarnation.

    Args:
        peers: First incarnation in this job of each peer that ran here.
    """
    copied = {name: name for name in (CONFIG, runs.COMMAND, "environment.json")}
    for peer, incarnation in peers.items():
        life = f"{peer}-{incarnation}" if incarnation else f"{peer}"
        (results / f"peer-{life}").mkdir(exist_ok=True)
        for kind, end in (("events", "jsonl"), ("logbook", "md")):
            copied.update(
                {
                    f"{kind}.{end}": f"{kind}-{life}.{end}",
                    f"{kind}-{peer}.{end}": f"{kind}-{life}.{end}",
                }
            )
        own = [
            path.name
            for path in (folder / f"peer-{peer}").glob("*")
            if path.suffix in (".jsonl", ".log")
        ]
        copied.update({f"peer-{peer}/{name}": f"peer-{life}/{name}" for name in own})
    for source, target in copied.items():
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(folder / source, results / target)


def main() -> int:
    # HTCondor holds a job if its output folder is missing.
    Path(RUNS).mkdir(exist_ok=True)
    try:
        return train(sys.argv[1], sys.argv[2:])
    except GossipError as error:
        print_error(error)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
