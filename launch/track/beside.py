"""Trackers of a run, each in its own process. The launcher starts these processes, and waits for
them at the end for a limited time. Training never calls them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gossip.launch.report import word_for
from gossip.run import shown, start_tracker, tracker_log

END_S = 10.0
"""Time after the end of the run until a tracker that has not finished is killed, in seconds."""
LOG_BYTES = 2000


@contextmanager
def tracked(names: Sequence[str], folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Export the records of the run to trackers while the body of the context runs. A failure of a
    tracker raises nothing, but passes a line to ``say``."""
    processes = {}
    for name in dict.fromkeys(names):
        try:
            processes[name] = start_tracker(name, folder)
        except OSError as error:
            say(f"! {name}: the tracker cannot be started ({error.strerror}); training continues")
    try:
        yield
    finally:
        _end(processes, folder, say)


def _end(
    processes: Mapping[str, subprocess.Popen[bytes]], folder: Path, say: Callable[[str], None]
) -> None:
    until = time.monotonic() + END_S
    for process in processes.values():
        assert process.stdin is not None
        process.stdin.close()
    for name, process in processes.items():
        again, log = f"gossip track {word_for(folder)} --to {name}", tracker_log(name, folder)
        try:
            code = process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            say(f"! {name} had not stored all values {END_S:g} s after the end: {again}")
            continue
        if code:
            say(f"! {name} has failed: {_last_line(log)} ({log}); then: {again}")
        else:
            say(f"{name}: {_last_line(log)}")


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError as error:
        return str(error.strerror)
    return shown(next((line for line in reversed(lines) if line.strip()), "it printed nothing"))
