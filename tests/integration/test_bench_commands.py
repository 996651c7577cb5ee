"""``gossip bench exchange``, ``step``, ``encodings``: what they print, and that Ctrl-C leaves
nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import zygote
from conftest import command_of
from effort import effort

EXCHANGE = ("exchange", "-n", "2", "--numbers", "1000", "--repetitions", "100000")
BENCH = [sys.executable, "-m", "gossip.launch.cli", "bench"]


def told(*words: str, cwd: Path) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = zygote.run(
        [*BENCH, *words, "--json"], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "words",
    [
        ("exchange", "-n", "2", "--numbers", "5000", "--encoding", "int8"),
        ("step", "-n", "2", "--model", "digits-mlp", "--batch", "4"),
    ],
    ids=["exchange", "step"],
)
def test_both_sides_take_turns_in_one_process(words: tuple[str, ...], tmp_path: Path) -> None:
    found = told(*words, "--repetitions", "2", cwd=tmp_path)
    assert found["schema"] == f"gossip.bench.{words[0]}/1"
    (row,) = found["rows"]
    assert row["peers"] == 2
    assert {side: len(turns) for side, turns in row["turns"].items()} == {"gloo": 2, "gossip": 2}
    assert all(each > 0 for turns in row["turns"].values() for each in turns)
    ratios = [b / a for a, b in zip(row["turns"]["gloo"], row["turns"]["gossip"], strict=True)]
    assert min(ratios) <= row["ratio"]["median"] <= max(ratios)
    assert set(row["processor_s"]) == {"gloo", "gossip"}
    assert all(each > 0 for each in row["processor_s"].values())
    assert row["rounds"] > 2
    assert row["limits"]["nbytes"] == 4 * row["numbers"]
    assert min(row["limits"].values()) > 0
    assert not list(tmp_path.iterdir()), "it runs in a folder of its own, which is gone"


def test_the_page_of_encodings_gets_its_measured_part_anew(tmp_path: Path) -> None:
    page, kept = tmp_path / "page.md", tmp_path / "cells"
    begin, end = (
        "<!-- measured by gossip bench encodings -->",
        "<!-- end of measured by gossip bench encodings -->",
    )
    page.write_text(f"before\n{begin}\nold\n{end}\nbehind\n")
    words = ["encodings", "--rules", "mean median", "--encoding", "float32", "--encoding", "topk"]
    words += ["--seeds", "1", "--rounds", "10", "--attack", "sign_flip"]
    words += ["--into", str(kept), "--page", str(page)]
    found = told(*words, cwd=tmp_path)
    cells = {(row["rule"], row["encoding"]): row for row in found["rows"]}
    assert "each coordinate alone" in cells["median", "topk"]["refused"]
    assert 0 < cells["mean", "topk"]["clean"] <= 1
    text = page.read_text()
    assert text.startswith(f"before\n{begin}\n\nAccuracies: 3 seeds")
    assert "\n1 seed, 10 rounds" in text
    assert text.endswith(f"{end}\nbehind\n")
    assert "| median |" in text
    assert "old" not in text
    assert len(list(kept.iterdir())) == 8 + 6
    assert told(*words, cwd=tmp_path)["rows"] == found["rows"], "what is known is not run again"
    assert len(list(kept.iterdir())) == 8 + 6


def at_work(children: list[psutil.Process], bench: str) -> bool:
    """Whether peers train, or a process for trials is there."""
    if bench == "exchange":
        named = set()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):  # gone meanwhile
                named.add(child.name())
        return {"gossip-peer-0", "gossip-peer-1", "gossip-node-0", "gossip-node-1"} <= named
    return any("spawn_main" in command_of(child) for child in children)


MISUSED_LATE = [
    (("exchange", "-n", "4", "--encoding", "topk", "--aggregator", "median"), "each coordinate"),
    (("encodings", "--page", "none.txt"), "has no line"),
    (("encodings", "--model", "small_cnn"), "is for images of 28 by 28"),
    (("encodings", "--data", "no.npz"), "there is no no.npz"),
]
"""What is found out after torch was imported."""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("step", "--model", "gpt"), "there is no model 'gpt'"),
        (("exchange", "--encoding", "int9", "-n", "2"), "Did you mean 'int8'"),
        *effort([], MISUSED_LATE),
    ],
)
def test_misuse_is_told(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = zygote.run([*BENCH, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "sent", "code"),
    [
        (EXCHANGE, signal.SIGINT, 130),
        *effort(
            [],
            [
                (EXCHANGE, signal.SIGTERM, 143),
                (("encodings", "--rounds", "1000000"), signal.SIGTERM, 143),
            ],
        ),
    ],
    ids=["exchange-int", *effort([], ["exchange-term", "encodings-term"])],
)
def test_ctrl_c_and_sigterm_end_all_and_leave_no_folder(
    words: tuple[str, ...], sent: signal.Signals, code: int, tmp_path: Path
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    running = zygote.Popen(
        [*BENCH, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        parent, deadline = psutil.Process(running.pid), time.monotonic() + 120
        while not at_work(children := parent.children(recursive=True), words[0]):
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < deadline, "it starts no processes"
            time.sleep(0.05)  # between two looks, not instead of one
        running.send_signal(sent)
        running.wait(60)
        assert running.returncode == code, running.communicate()
        _, alive = psutil.wait_procs(children, timeout=30)
        assert not alive
        assert not list(tmp_path.glob("gossip-bench-*"))
    finally:
        running.kill()
        running.wait()
        if running.stderr is not None:
            running.stderr.close()
