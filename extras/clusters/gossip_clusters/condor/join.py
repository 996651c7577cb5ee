"""``python -m gossip_clusters.condor.join``: a job of HTCondor that adds a peer to a run of other
jobs.

If there is a contact file, the job connects to the join servers in it. Otherwise it uses the folder
of the run, which all machines share.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gossip.config import RunConfig
from gossip.errors import ConfigError, GossipError
from gossip.interpreter import python_command
from gossip.launch.join import CONFIG, arriving
from gossip.launch.local import Program, code_of, runs
from gossip.launch.report import RUNS, PlainScreen, print_error
from gossip.launch.schedulers import reached_at
from gossip.run import Task, own_address

from .contact import Contact, find_chirp, join_servers
from .peer import bring_back, own_key

JOIN_REQUEST_S = 600.0  # This job may start before the jobs of the run.
NONE_YET = "no job of the run has begun"


def by_contact(path: str, words: Sequence[str]) -> int:
    """Join the newest run in a contact file. Return the exit code of the job."""
    chirp = find_chirp()
    lines = Contact(path, "", chirp).read_all()
    if not lines:
        raise ConfigError(f"{path}: {NONE_YET}", "submit this job when those jobs are training")
    name = lines[-1].run
    results = Path(RUNS) / name
    results.mkdir(parents=True, exist_ok=True)
    given, screen = RunConfig.load(CONFIG), PlainScreen(every_s=10.0)
    code = tuple(code_of(given))
    folder = Path.cwd() / "gossip-joined"
    there = join_servers(line for line in lines if line.run == name)
    ticket = arriving.JoinTicket(
        there, 1, own_key(), given.insecure, "", 0, folder, JOIN_REQUEST_S, code
    )
    arrival = arriving.arrive(ticket, Program.of(words), screen.print_line)
    screen.print_line(
        f"{arrival.config.name}: joining {name} as peer {', '.join(map(str, arrival.newcomers))}"
    )
    try:
        return runs.train(
            arrival.config, arrival.program, screen, arrival.newcomers, arrival.endpoint
        ).exit_code
    finally:
        bring_back(folder, results, arrival.newcomers)


def by_folder(words: Sequence[str]) -> None:
    """Replace this process by ``gossip join`` for the newest run in this folder. The peer listens
    at the address that HTCondor uses for this machine."""
    found = sorted(Path(RUNS).glob("condor-*/config.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ConfigError(
            f"{Path(RUNS).resolve()}: {NONE_YET}", "submit this job when those jobs are training"
        )
    config, folder = RunConfig.load(found[-1]), found[-1].parent
    listen = own_address(
        Task("HTCondor", folder.name, 0, 2, one_host=False, towards=reached_at(os.environ)), config
    )
    command = python_command("-m", "gossip.launch.cli", "join", str(folder), "--", *words)
    os.execve(command[0], command, {**os.environ, "GOSSIP_LISTEN": listen})


def main() -> int:
    contact, words = sys.argv[1], sys.argv[2:]
    try:
        if not contact:
            by_folder(words)
        # HTCondor holds a job if its output folder is missing.
        Path(RUNS).mkdir(exist_ok=True)
        return by_contact(contact, words)
    except GossipError as error:
        print_error(error)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
