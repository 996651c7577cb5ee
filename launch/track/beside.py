"""Trackers of a run, each in its own process. The launcher starts these processes, and waits for
them at the end for a limited time. Training never calls them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gossip.launch.report import word_for
from gossip.run import shown, start_tracker, tracker_log

END_S = 10.0
"""Time after the end of the run until a tracker that has not finished is killed, in seconds."""
LOG_BYTES = 2000


@dataclass(frozen=True, slots=True)
class _Exporter:
    name: str
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def tracked(names: Sequence[str], folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Export the records of the run to trackers while the body of the context runs. A failure of a
    tracker raises nothing, but passes a line to ``say``."""
    exporters = [started for name in names if (started := _start(name, folder, say)) is not None]
    try:
        yield
    finally:
        _end(exporters, folder, say)


def _start(name: str, folder: Path, say: Callable[[str], None]) -> _Exporter | None:
    try:
        process = start_tracker(name, folder)
    except OSError as error:
        say(f"! {name}: the tracker cannot be started ({error.strerror}); training continues")
        return None
    return _Exporter(name, process, tracker_log(name, folder))


def _end(exporters: Sequence[_Exporter], folder: Path, say: Callable[[str], None]) -> None:
    until = time.monotonic() + END_S
    for each in exporters:
        assert each.process.stdin is not None
        each.process.stdin.close()
    for each in exporters:
        again = f"gossip track {word_for(folder)} --to {each.name}"
        try:
            code = each.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.process.kill()
            each.process.wait()
            say(f"! {each.name} had not stored all values {END_S:g} s after the end: {again}")
            continue
        if code:
            say(f"! {each.name} has failed: {_last_line(each.log)} ({each.log}); then: {again}")
        else:
            say(f"{each.name}: {_last_line(each.log)}")


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError as error:
        return str(error.strerror)
    return shown(next((line for line in reversed(lines) if line.strip()), "it printed nothing"))
