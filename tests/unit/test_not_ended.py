"""What is kept of a run that does not end: ``GOSSIP_STACKS``, and ``benchmarks/not_ended.py``."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from gossip.errors import ConfigError
from gossip.run import STACKS_SIGNAL, STACKS_VARIABLE, dump_stacks_on_signal

SCRIPT = """
import sys
from gossip.run import dump_stacks_on_signal
def waits_for_a_word():
    print("ready", flush=True)
    sys.stdin.read()
dump_stacks_on_signal("trainer")
waits_for_a_word()
"""


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import whole_runs

    monkeypatch.setattr(whole_runs.not_ended, "LOOKS_S", 0.0)
    return whole_runs


@contextmanager
def waiting(stacks: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that waits in ``waits_for_a_word``."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, STACKS_VARIABLE: str(stacks)},
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def is_written(path: Path, word: str, within_s: float = 60.0) -> bool:
    """Whether a process writes that there when it gets to it."""
    over = time.monotonic() + within_s
    while word not in path.read_text() and time.monotonic() < over:
        time.sleep(0.001)
    return word in path.read_text()


def state_of(pid: int, text: str) -> str:
    """The line below that of the process."""
    return text.partition(f"\n{pid} ")[2].splitlines()[1]


def test_a_process_writes_down_where_it_waits_and_goes_on(tmp_path: Path) -> None:
    with waiting(tmp_path / "stacks") as process:
        process.send_signal(STACKS_SIGNAL)
        path = tmp_path / "stacks" / f"trainer-{process.pid}.txt"
        assert is_written(path, "waits_for_a_word")
        assert process.communicate("a word")[0] == ""
    assert process.returncode == 0


def test_without_the_variable_the_signal_is_left_to_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(STACKS_VARIABLE, raising=False)
    before = signal.getsignal(STACKS_SIGNAL)
    dump_stacks_on_signal("trainer")
    assert signal.getsignal(STACKS_SIGNAL) is before


def test_a_folder_that_cannot_be_written_to_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(STACKS_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"GOSSIP_STACKS=.*file: cannot write there"):
        dump_stacks_on_signal("node")


def test_all_below_a_launcher_are_written_down_and_who_is_stopped_shows(
    tmp_path: Path, bench: ModuleType
) -> None:
    with waiting(tmp_path / "stacks") as waits, waiting(tmp_path / "none") as stopped:
        stopped.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        path = bench.not_ended.keep([os.getpid()], tmp_path, tmp_path / "stacks")
        stacks = tmp_path / "stacks" / f"trainer-{waits.pid}.txt"
        assert is_written(stacks, "waits_for_a_word")
        assert (tmp_path / "none" / f"trainer-{stopped.pid}.txt").read_text() == ""
    first, _, later = path.read_text().partition("s later")
    for text in (first, later):
        assert "State T (stopped)" in state_of(stopped.pid, text)
        assert re.search(r"State [SRD] \(", state_of(waits.pid, text))


def test_a_run_that_does_not_end_leaves_its_folder_and_what_it_was_at(
    tmp_path: Path, bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "RUN_TIMEOUT_S", 0.0)
    monkeypatch.setattr(bench.tempfile, "tempdir", str(tmp_path))
    command = [sys.executable, "-c", "import time; time.sleep(3600)"]
    with pytest.raises(bench.Failed) as failed, bench.scratch("kept-") as folder:
        bench.run_all([(command, bench.environment())], folder / "log")
    assert f"not done in 0 s, see {folder}/not_ended.txt" in str(failed.value)
    assert f"its folder is kept: {folder}" in str(failed.value)
    assert "  State " in (folder / "not_ended.txt").read_text()


def test_a_run_that_ends_leaves_nothing(
    tmp_path: Path, bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.tempfile, "tempdir", str(tmp_path))
    with bench.scratch() as folder:
        bench.run_all([([sys.executable, "-c", ""], bench.environment())], folder / "log")
        assert folder.exists()
    with pytest.raises(KeyError), bench.scratch():
        raise KeyError
    assert list(tmp_path.iterdir()) == []
