"""A second machine joins by an address, with keys; the first is cut off and lost,
and the second goes on."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zygote
from hosts import Hosts, hosts, why_no_hosts
from test_elastic import SCRIPT

pytestmark = [pytest.mark.timeout(400), pytest.mark.skipif(bool(why := why_no_hosts()), reason=why)]

PATIENCE_S = 150.0
ANSI = re.compile(r"\x1b\[[0-9;]*m")


class JoinHost:
    """A host with a folder of its own, in which a launcher runs."""

    def __init__(self, pair: Hosts, number: int, folder: Path) -> None:
        self.folder, self._here = folder, pair.on(number)
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPT)
        self.launcher: subprocess.Popen[bytes] | None = None

    def gossip(self, *words: str) -> None:
        command = [sys.executable, "-m", "gossip.launch.cli", *words]
        environment = {**os.environ, "COLUMNS": "400", **self._here}
        with (self.folder / "log").open("ab") as log:
            self.launcher = zygote.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, env=environment
            )

    @property
    def log(self) -> str:
        return ANSI.sub("", (self.folder / "log").read_text())

    @property
    def run(self) -> Path:
        (run,) = (self.folder / "runs").iterdir()
        return run

    def rows(self, event: str) -> list[dict[str, Any]]:
        try:
            lines = (self.run / "events.jsonl").read_text().splitlines()
        except (FileNotFoundError, ValueError):
            return []
        found = (json.loads(line) for line in lines if line.endswith("}"))
        return [row for row in found if row.get("event") == event]

    def wait(self, done: Callable[[], object], what: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < until, f"{what} never came\n{self.log}"
            time.sleep(0.05)  # between two looks, not instead of one

    def wait_for_rounds(self, contributors: set[int], more: int = 5) -> None:
        """Waits until a round has just these peers, and some more are over."""

        def last() -> Any:
            return (self.rows("round") or [{"round": -1, "contributors": []}])[-1]

        self.wait(lambda: set(last()["contributors"]) == contributors, f"a round of {contributors}")
        until = last()["round"] + more
        self.wait(lambda: last()["round"] > until, f"round {until}")

    def close(self) -> None:
        if self.launcher is not None and self.launcher.poll() is None:
            self.launcher.kill()
            self.launcher.wait()


@pytest.fixture
def pair() -> Iterator[Hosts]:
    with hosts(2) as made:
        yield made


def test_a_machine_joins_by_an_address_and_outlives_the_first(pair: Hosts, tmp_path: Path) -> None:
    first, second = JoinHost(pair, 0, tmp_path / "first"), JoinHost(pair, 1, tmp_path / "second")
    try:
        begin = shlex.split("-n 3 --room 5 --quorum available --aggregator mean --name t")
        first.gossip("run", "--advertise", "10.77.0.0/24", *begin, "train.py")
        first.wait_for_rounds({0, 1, 2})
        key = re.search(
            r"room for 2 more, on any machine with train.py and a copy of (\S+):\n", first.log
        )
        line = re.search(
            r"  gossip (join --key swarm.key 10\.77\.0\.1:\d+ -- train.py)\n", first.log
        )
        assert key, first.log
        assert line, first.log
        shutil.copy(key[1], second.folder)  # the copy that its user makes
        second.gossip(*line[1].split())
        second.wait_for_rounds({0, 1, 2, 3})
        assert [join["peer"] for join in second.rows("spawned")] == [3]
        assert "tcp://10.77.0.2:" in (first.run / "seeds" / "3.addr").read_text()
        pair.cut(0)
        second.wait_for_rounds({3})
        first.close()  # it is gone for good: what it learnt meanwhile alone is nobody's concern
        (second.run / "end").write_text(str(second.rows("round")[-1]["round"] + 40))
        assert second.launcher is not None
        second.wait(lambda: "it waits for peers 0-2" in second.log, "the end of the training")
        second.launcher.send_signal(signal.SIGINT)  # they will not come back
        assert second.launcher.wait(PATIENCE_S) == 0, second.log
    finally:
        first.close()
        second.close()
    summary = json.loads((second.run / "summary.json").read_text())
    assert (summary["status"], summary["finished"], summary["remote_peers"]) == (
        "finished",
        [3],
        [0, 1, 2],
    )
    assert summary["samples"]["twice"] == 0
    # on a busy machine a round may be closed before anybody's update has come
    lost = second.rows("lost_round")
    assert summary["rounds_lost"] == len({row["round"] for row in lost}) < 10, lost
    (join,) = summary["joins"]
    assert join["peer"] == 3
    assert join["round"] > 0
