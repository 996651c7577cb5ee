"""The contact file of a submission to HTCondor: addresses of peers, for jobs that share no folder.

The file is on the submitting machine. A job reads the file and appends to it through HTCondor
(``condor_chirp``), which needs no direct connection. That one machine appends the lines of all
jobs, so no line is lost or cut. The file has addresses and no secret: the swarm key decides which
peers a join server admits.
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
        what: Address of its launcher's join server; COMES: the job has started; DONE: the peer has
            finished.
    """

    run: str
    peer: int
    incarnation: int
    what: str

    def __str__(self) -> str:
        return f"{self.run} {self.peer} {self.incarnation} {self.what}\n"


class NoContact(GossipError):
    """The contact file cannot be read or written."""


class Contact:
    """The contact file, for one run.

    Args:
        path: Path on the submitting machine.
        chirp: Command that accesses it.
    """

    def __init__(self, path: str, run: str, chirp: Sequence[str]) -> None:
        self.path, self.run, self._chirp = path, run, tuple(chirp)

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
        """Return the lines of all runs, in the order in which they were written. Raises:
        NoContact."""
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
    """Return the valid lines. Others are ignored: a process that can write to the file could also
    delete it."""
    found = []
    for row in text.splitlines():
        words = row.split()
        if len(words) == 4 and words[1].isdecimal() and words[2].isdecimal():
            found.append(ContactLine(words[0], int(words[1]), int(words[2]), words[3]))
    return found


def next_incarnation(lines: Iterable[ContactLine], peer: int) -> int:
    """Return the incarnation that a job's peer begins with, once the job has written its COMES
    line."""
    own = [line for line in lines if line.peer == peer]
    lives = sum(line.what == COMES for line in own)
    return max([lives - 1, *(line.incarnation + 1 for line in own if line.what != COMES)])


def join_servers(lines: Iterable[ContactLine]) -> tuple[str, ...]:
    """Return the addresses, the newest first: the newest server is the most likely to reply."""
    found = [line.what for line in lines if line.what not in (COMES, DONE)]
    return tuple(dict.fromkeys(reversed(found)))


def find_chirp() -> tuple[str, ...]:
    """Return the command, which is rarely in the path. Raises: NoContact."""
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
            "there is no condor_chirp on this machine: jobs without a shared folder find "
            "each other by it"
        )
    return (found,)
