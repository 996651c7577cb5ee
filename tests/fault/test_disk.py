"""A disk that fills up, a run's folder that is deleted or made immutable while the run trains: it
ends as if nothing had been."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zygote

RUN = "from gossip.launch.cli import main; main()"
ROUNDS = 60
SCRIPT = """
import pathlib, sys, time, gossip, torch
peer = gossip.init()
model = torch.nn.Linear(8, 8)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
for step in range(60):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
    peer.log(x=1.0)
    print("step", step, "." * 400, flush=True)
    if step == 20:
        pathlib.Path(sys.argv[1], f"at-20.{peer.id}").touch()
        while not pathlib.Path(sys.argv[1], "go on").exists():
            time.sleep(0.01)
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with room for a run that has just begun."""
    place = tmp_path / "disk"
    place.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], check=False
        ).returncode
    ):
        pytest.skip("mounting a small disk takes root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def run(
    folder: Path, tmp_path: Path, strike: Callable[[], None]
) -> tuple[int, dict[str, object], str]:
    """Trains with two peers, and strikes when both are in round 20. Returns exit code, summary and
    all else that was said."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    options = f"run -n 2 --rounds {ROUNDS} --json --run-dir {folder} {script}"
    words = [sys.executable, "-c", RUN, *shlex.split(options)]
    with zygote.Popen(
        [*words, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launcher:
        until = time.monotonic() + 60.0
        while not all((tmp_path / f"at-20.{peer}").exists() for peer in (0, 1)):
            assert launcher.poll() is None, launcher.communicate()
            assert time.monotonic() < until, "the peers do not come to round 20"
            time.sleep(0.01)
        strike()
        (tmp_path / "go on").touch()
        out, err = launcher.communicate(timeout=120)
    summary = next(json.loads(line) for line in out.splitlines() if line.startswith('{"schema"'))
    return launcher.returncode, summary, out + err


def assert_well(code: int, summary: dict[str, object], said: str) -> None:
    assert code == 0, said
    assert "Traceback" not in said
    assert summary["status"] == "finished"
    assert summary["rounds"] == ROUNDS
    assert summary["record_incomplete"]


@pytest.mark.timeout(180)
def test_training_goes_on_when_the_disk_is_full(small_disk: Path, tmp_path: Path) -> None:
    def fill() -> None:
        with (small_disk / "filler").open("wb", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(4096))
                except OSError:
                    return

    code, summary, said = run(small_disk / "run", tmp_path, fill)
    assert_well(code, summary, said)
    assert said.count("No space left on device") <= 2, (
        "once as it goes and once at the end, whoever and whichever file"
    )


@pytest.mark.timeout(180)
def test_training_goes_on_when_the_disk_has_room_again(small_disk: Path, tmp_path: Path) -> None:
    def fill_and_empty() -> None:
        with (small_disk / "filler").open("wb", buffering=0) as file:
            file.truncate()
            while True:
                try:
                    file.write(bytes(4096))
                except OSError:
                    break
        (small_disk / "filler").unlink()

    code, summary, said = run(small_disk / "run", tmp_path, fill_and_empty)
    assert code == 0, said
    assert summary["record_incomplete"] == {}, "nothing was lost: what was kept is written"
    assert json.loads((small_disk / "run" / "summary.json").read_text())["rounds"] == ROUNDS


@pytest.mark.timeout(180)
def test_training_goes_on_when_the_folder_is_deleted(tmp_path: Path) -> None:
    code, summary, said = run(tmp_path / "run", tmp_path, lambda: shutil.rmtree(tmp_path / "run"))
    assert_well(code, summary, said)
    assert not (tmp_path / "run").exists()
    lacking = summary["record_incomplete"]
    assert isinstance(lacking, dict)
    begun = [
        f"peer-{peer}/{name}"
        for peer in (0, 1)
        for name in ("events.jsonl", "metrics.jsonl", "out.log")
    ]
    assert all(
        lacking.get(str(tmp_path / "run" / name)) for name in [*begun, "events.jsonl", "logbook.md"]
    ), lacking
