"""A machine that was not on the list joins ``gossip hosts`` by the line that it prints, pasted as
it is, over real ssh; and needs none of its hosts in particular: that of the launcher is cut off,
and the others finish."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from following import FollowedRows
from sshd import inside, why_no_sshd
from test_ssh_hosts import WAIT_S, SshRun, run_on

from gossip.launch.report import history, summary
from gossip.observe import CommitRow, read_commits
from gossip.run.telemetry import read_lines

pytestmark = [
    pytest.mark.ssh,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why := why_no_sshd()), reason=why),
]

A, B, C = range(3)
LINE = re.compile(
    r"room for 2 more, on any machine with train.py and a copy of (\S+):\n.*?  (gossip join .*)\n"
)


class ThirdHost:
    """The third host: a folder with the script, a shell,
    and what its user reads on the launcher's screen."""

    def __init__(self, run: SshRun) -> None:
        self.run, self.folder, self.host = run, run.on.folders[C], run.on.names[C]
        self.launchers: list[subprocess.Popen[bytes]] = []
        self._files: list[FollowedRows] = []
        self.runs: list[Path] = []
        programs = self.folder / "bin"
        programs.mkdir()
        gossip = programs / "gossip"  # as installed; a test may run where it is not
        gossip.write_text(f'#!/bin/sh\nexec {sys.executable} -m gossip.launch.cli "$@"\n')
        gossip.chmod(0o755)
        self.log = self.folder / "log"
        run.logs.append(self.log)
        self._environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        self.line = ""

    def bring_the_key(self) -> None:
        """As the screen says, by scp from the launcher's host."""
        found = self.run.wait(lambda: LINE.search(self.run.log.read_text()), "the line to paste")
        key, self.line = found.groups()
        self._shell(f"scp -q -F {self.run.on.config} {self.run.on.names[A]}:{key} .").wait(WAIT_S)
        assert stat.S_IMODE((self.folder / "swarm.key").stat().st_mode) == 0o600

    def paste(self) -> None:
        """The line, as it is."""
        self.runs.append(
            self.folder / "runs" / (self.run.name if not self.launchers else f"{self.run.name}-2")
        )
        self.launchers.append(self._shell(self.line))
        self._files.append(FollowedRows(self.runs[-1] / "events.jsonl"))

    def _shell(self, line: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            command = inside(self.host, "bash", "-c", line)
            return subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, env=self._environment
            )

    def rows(self, which: int, *names: str) -> list[dict[str, Any]]:
        return self._files[which].so_far(*names)

    def wait(self, what: Callable[[], bool], about: str) -> None:
        def look() -> bool:
            assert all(launcher.poll() is None for launcher in self.launchers), (
                self.log.read_text()[-4000:]
            )
            return what()

        self.run.wait(look, about)

    def wait_for_rounds_of(self, peers: set[int], more: int, which: int = 0) -> None:
        """Until the newcomer of a line sees a round of just these, and some more are over."""

        def last() -> dict[str, Any]:
            return (self.rows(which, "round") or [{"round": -1, "contributors": []}])[-1]

        self.wait(lambda: set(last()["contributors"]) == peers, f"a round of {peers}")
        until = last()["round"] + more
        self.wait(lambda: last()["round"] > until, f"round {until}")

    def summary(self, which: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.runs[which] / "summary.json").read_text())
        return found

    def close(self) -> None:
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.kill()
                launcher.wait()


@contextmanager
def third(tmp_path: Path, **environment: str) -> Iterator[tuple[SshRun, ThirdHost]]:
    """A run on two hosts with room for two more, and a third host with a copy of its key."""
    with run_on(3, tmp_path, "--room", "4", hosts=2, **environment) as run:
        machine = ThirdHost(run)
        try:
            machine.bring_the_key()
            run.wait_for_rounds(10, A, B)
            yield run, machine
        finally:
            machine.close()


def commits_of(*folders: Path) -> list[CommitRow]:
    """The history of the whole run: who makes a commit writes it down, on its own machine."""
    rows = [
        row
        for folder in folders
        for path in folder.glob("peer-*/commits.jsonl")
        for row in read_lines(path)
    ]
    return list(history.read(read_commits(rows)).true)


def ends(rows: Iterable[dict[str, Any]]) -> dict[int, tuple[int, str]]:
    """Of each peer that has finished: which round its parameters are of, and their digest."""
    return {
        row["peer"]: (row["state_round"], row["state_digest"])
        for row in rows
        if row["reason"] == "finished"
    }


def test_a_third_machine_joins_by_the_line_as_it_is_printed_and_contributes(tmp_path: Path) -> None:
    with third(tmp_path) as (run, machine):
        machine.paste()
        machine.wait_for_rounds_of({0, 1, 2}, more=40)
        found = run.finish(30, A, B)
        assert machine.launchers[0].wait(WAIT_S) == 0, machine.log.read_text()[-4000:]
        said = run.log.read_text()
        halted = [*run.rows(A, "halted"), *run.rows(B, "halted"), *machine.rows(0, "halted")]
        theirs = machine.summary(0)
        commits = commits_of(run.folder, *machine.runs)
    assert "+ peer 2 has joined" in said
    assert sorted(ends(halted)) == [0, 1, 2]
    assert len(set(ends(halted).values())) == 1, "all replicas are identical"
    # What each folder says for itself, though neither has all commits.
    assert (found["finished"], found["remote_peers"], found["joins"]) == ([0, 1], [2], [])
    assert (theirs["finished"], theirs["remote_peers"]) == ([2], [0, 1])
    (join,) = theirs["joins"]
    assert (join["peer"], join["round"] > 0) == (2, True)
    for one in (found, theirs):
        assert one["samples"]["once"] > 0
        assert one["samples"]["twice"] == 0
        assert one["rounds_lost"] < 10, "and not those that the others have written down"
    # And the whole: the newcomer's rounds and samples are in it, and no other's are missing.
    shares = [each for commit in commits for each in commit.contributors if each.peer == 2]
    assert len(shares) > 40
    assert all(share.samples > 0 for share in shares)
    assert sum(commit.server == 2 for commit in commits) > 5, "it serves in its turn"
    counted = summary.epochs(commits)
    assert counted
    assert sum(each["once"] for each in counted) > 0
    assert [each["twice"] for each in counted] == [0] * len(counted)


def test_the_launchers_host_is_cut_off_and_joiners_finish_with_the_rest(tmp_path: Path) -> None:
    with third(tmp_path, GOSSIP_QUORUM_TIMEOUT_S="15") as (run, machine):
        machine.paste()
        machine.wait_for_rounds_of({0, 1, 2}, more=20)
        run.on.made.cut(A)
        machine.wait_for_rounds_of({1, 2}, more=20)
        machine.paste()  # the line of a launcher that nobody reaches any more
        machine.wait_for_rounds_of({1, 2, 3}, more=20, which=1)
        run.end_in(20, B)
        for launcher in machine.launchers:
            assert launcher.wait(WAIT_S) == 0, machine.log.read_text()[-4000:]
        theirs = [machine.summary(0), machine.summary(1)]
        on_b = run.host_folder(B) / "summary.json"
        run.wait(on_b.exists, "the end of those who were not cut off")
        halted = [*run.rows(B, "halted"), *machine.rows(0, "halted"), *machine.rows(1, "halted")]
        assert not any(row["reason"] == "finished" for row in run.rows(A, "halted")), (
            "it was cut off"
        )
        run.on.made.heal(A)
        code = run.launcher.wait(WAIT_S)
        said = run.log.read_text()
        found = json.loads((run.folder / "summary.json").read_text())
    assert [json.loads(on_b.read_text())["finished"], *(one["finished"] for one in theirs)] == [
        [1],
        [2],
        [3],
    ]
    assert sorted(ends(halted)) == [1, 2, 3]
    assert len(set(ends(halted).values())) == 1, "all replicas are identical"
    for one in theirs:
        assert one["samples"]["once"] > 0
        assert one["samples"]["twice"] == 0
    assert code == 0, said[-4000:]
    assert (found["finished"], found["remote_peers"]) == ([1], [2, 3])
    assert f"{run.on.names[B]} has been silent for" in said
