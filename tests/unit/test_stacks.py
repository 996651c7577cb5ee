"""The stacks of a process that does not end: ``GOSSIP_STACKS``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def test_a_process_writes_down_where_it_waits_and_goes_on(tmp_path: Path) -> None:
    with waiting(tmp_path / "stacks") as process:
        process.send_signal(STACKS_SIGNAL)
        path = tmp_path / "stacks" / f"trainer-{process.pid}.txt"
        assert is_written(path, "waits_for_a_word")
        assert process.communicate("a word")[0] == ""
    assert process.returncode == 0


def test_without_the_variable_the_script_has_the_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STACKS_VARIABLE, raising=False)
    before = signal.getsignal(STACKS_SIGNAL)
    dump_stacks_on_signal("trainer")
    assert signal.getsignal(STACKS_SIGNAL) is before


def test_an_unwritable_folder_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(STACKS_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"GOSSIP_STACKS=.*file: cannot write there"):
        dump_stacks_on_signal("node")
