"""The contact file of a submission to HTCondor. It has the addresses of peers, for jobs without a
shared folder.

The file is on the submitting machine. A job reads it and appends to it through HTCondor
(``condor_chirp``), without a direct connection to that machine. Only that machine writes to the
file, so no line of a job is lost or cut. The file contains addresses and no secret. Join
servers use the swarm key to decide which peers they admit.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gossip.errors import GossipError

CHIRP_S = 60.0
LIBEXEC = ("/usr/libexec/condor", "/usr/lib/condor/libexec")
COMES, DONE = "comes", "done"


@dataclass(frozen=True, slots=True)
class ContactLine:
    """One line of the file: ``RUN PEER INCARNATION WHAT``.

    Attributes:
        what: The address of the join server in the peer's launcher, or COMES if the job has
            started, or DONE if the peer has finished.
    """

    run: str
    peer: int
    incarnation: int
    what: str

    def __str__(self) -> str:
        return f"{self.run} {self.peer} {self.incarnation} {self.what}\n"


class NoContact(GossipError):
    """The contact file could not be read or written."""


class Contact:
    """Access of one run to the contact file.

    Args:
        path: Path on the submitting machine.
        chirp: Command that reads and writes files on the submitting machine.
    """

    def __init__(self, path: str, run: str, chirp: Sequence[str]) -> None:
        self.path = path
        self.run = run
        self._chirp = tuple(chirp)

    def add(self, peer: int, incarnation: int, what: str) -> None:
        """Append a line. Raises: NoContact."""
        self._call(
            ["put", "-mode", "cwa", "-perm", "600", "-", self.path],
            str(ContactLine(self.run, peer, incarnation, what)),
        )

    def read(self) -> list[ContactLine]:
        """Return the lines of the run. Raises: NoContact."""
        return [line for line in self.read_all() if line.run == self.run]

    def read_all(self) -> list[ContactLine]:
        """Return the lines of all runs, from the oldest to the newest. Raises: NoContact."""
        return read_lines(self._call(["fetch", self.path, "-"]))

    def _call(self, words: Sequence[str], text: str = "") -> str:
        try:
            done = subprocess.run(
                [*self._chirp, *words],
                input=text,
                capture_output=True,
                text=True,
                check=False,
                timeout=CHIRP_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoContact(f"condor_chirp {words[0]} of {self.path}: {error}") from error
        if done.returncode != 0:
            said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
            raise NoContact(f"condor_chirp {words[0]} of {self.path}: {said}")
        return done.stdout


def read_lines(text: str) -> list[ContactLine]:
    """Parse the valid lines. Invalid lines are ignored. They are no additional risk, because a
    process that can write them could also delete the file."""
    found = []
    for row in text.splitlines():
        words = row.split()
        if len(words) == 4 and words[1].isdecimal() and words[2].isdecimal():
            found.append(ContactLine(words[0], int(words[1]), int(words[2]), words[3]))
    return found


def next_incarnation(lines: Iterable[ContactLine], peer: int) -> int:
    """Return the first incarnation of a job's peer. The job must have written its COMES line
    before."""
    own = [line for line in lines if line.peer == peer]
    lives = sum(line.what == COMES for line in own)
    return max([lives - 1, *(line.incarnation + 1 for line in own if line.what != COMES)])


def join_servers(lines: Iterable[ContactLine]) -> tuple[str, ...]:
    """Return the addresses from the newest to the oldest. The newest join server is the most likely
    to reply."""
    found = [line.what for line in lines if line.what not in (COMES, DONE)]
    return tuple(dict.fromkeys(reversed(found)))


def find_chirp() -> tuple[str, ...]:
    """Return the command ``condor_chirp``, which is usually not in PATH. Raises: NoContact: There
    is none."""
    places = [shutil.which("condor_chirp")]
    if (asks := shutil.which("condor_config_val")) is not None:
        said = subprocess.run(
            [asks, "LIBEXEC"], capture_output=True, text=True, check=False, timeout=CHIRP_S
        )
        places.append(f"{said.stdout.strip()}/condor_chirp")
    places += [f"{folder}/condor_chirp" for folder in LIBEXEC]
    found = next((place for place in places if place and Path(place).is_file()), None)
    if found is None:
        raise NoContact(
            "there is no condor_chirp on this machine: jobs without a shared folder need "
            "it to find each other"
        )
    return (found,)
