"""CSV: a file for each metric in ``RUN/csv``, and what happened in ``RUN/csv/events.txt``."""

from __future__ import annotations

import csv
import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from .base import Point, RunDescription, Told, split_curve

HEADER = ("step", "value", "peer")
EVENTS = "events.txt"
NAME_MAX = 200
"""Characters of a file's name. A longer one is cut, and ends in a digest of all of it."""
Row = tuple[int, float, int | str]


class CsvFiles:
    """Appends to a file of each metric. What was exported of this run before is written anew."""

    def __init__(self, folder: Path) -> None:
        if folder.is_dir():
            shutil.rmtree(folder)
        folder.mkdir()
        self._folder = folder

    def begin(self, about: RunDescription) -> None:
        """Writes nothing: the settings are in ``config.json`` beside the folder."""

    def points(self, points: Sequence[Point]) -> None:
        rows: dict[str, list[Row]] = {}
        for point in points:
            metric, peer = split_curve(point.name)
            row = point.step, point.value, "" if peer is None else peer
            rows.setdefault(_file_name(metric), []).append(row)
        for name, those in rows.items():
            with (self._folder / name).open("a", newline="") as file:
                lines = csv.writer(file, lineterminator="\n")
                if not file.tell():
                    lines.writerow(HEADER)
                lines.writerows(those)

    def log_event(self, told: Told) -> None:
        with (self._folder / EVENTS).open("a", errors="backslashreplace") as file:
            file.write(f"round {told.step}: {told.text}\n")

    def close(self) -> None:
        """Every file is closed."""


def _file_name(metric: str) -> str:
    """Name of one file below the folder, and of another one for each metric: a script chooses the
    names of its metrics, slashes and all."""
    text = metric.removeprefix("swarm/")
    words = "swarm_" + text if text != metric else metric
    name = quote(words, safe=" ", errors="surrogatepass")
    if len(name) > NAME_MAX:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        name = f"{name[: NAME_MAX - len(digest) - 1]}-{digest}"
    return f"{name}.csv"


def open_tracker(folder: Path) -> CsvFiles:
    """Open the tracker of the run in ``folder``."""
    return CsvFiles(folder / "csv")
