"""Many independent runs, each a cell of a table and a seed: side by side, kept in a file, and gone
on with after Ctrl-C."""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gossip_lab.simulation.campaign.runner import end_with_parent

Row = dict[str, Any]


def name_of(cell: Any) -> str:
    """A dataclass as one line of JSON: what its row is found by."""
    return json.dumps(asdict(cell), sort_keys=True)


def run_all(
    cells: Sequence[Any],
    play: Callable[[Any], Row],
    into: Path,
    prepare: Callable[[], None],
    jobs: int,
) -> dict[str, Row]:
    """Plays the cells that are not in ``into`` yet, in their order.

    Args:
        cells: Frozen dataclasses; two equal ones are the same run.
        play: ``play(cell)``, in a worker, with ``wall_s`` added to its row.
        into: A file with one JSON object a line, ``{"cell": ..., ...}``.
            Rows of other cells in it stay.
        prepare: Called in each new worker.
        jobs: Processes; 0 plays nothing and returns the rows that there are.
    Returns: The row of each cell by ``name_of``.
    """
    into.parent.mkdir(parents=True, exist_ok=True)
    kept = read_rows(into)
    # without a line that an interruption cut short
    into.write_text("".join(json.dumps(row) + "\n" for row in kept))
    rows = {json.dumps(row["cell"], sort_keys=True): row for row in kept}
    wanted = {name_of(cell): cell for cell in cells}
    todo = [cell for name, cell in wanted.items() if name not in rows]
    print(
        f"{len(wanted)} runs, {len(wanted) - len(todo)} of them are in {into} already",
        file=sys.stderr,
        flush=True,
    )
    if todo and jobs:
        began = time.monotonic()
        spawn = multiprocessing.get_context("spawn")
        with (
            spawn.Pool(min(jobs, len(todo)), initializer=_start, initargs=(play, prepare)) as pool,
            into.open("a") as file,
        ):
            for done, row in enumerate(pool.imap_unordered(_play, todo), 1):
                rows[json.dumps(row["cell"], sort_keys=True)] = row
                file.write(json.dumps(row) + "\n")
                file.flush()
                took_s = time.monotonic() - began
                left_s = took_s / done * (len(todo) - done)
                what = " ".join(f"{key}={value}" for key, value in row["cell"].items())
                found = " ".join(
                    f"{key}={value}"
                    for key, value in row.items()
                    if key != "cell" and not isinstance(value, list)
                )
                print(
                    f"{done}/{len(todo)}, {took_s / 60:.1f} min, about {left_s / 60:.1f} more: "
                    f"{what}: {found}",
                    file=sys.stderr,
                    flush=True,
                )
    return {name: rows[name] for name in wanted if name in rows}


def read_rows(file: Path) -> list[Row]:
    """Return the rows that were found before. A last line that was cut short is left out."""
    if not file.exists():
        return []
    return [
        json.loads(line)
        for line in file.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]


class _CellWorker:
    play: Callable[[Any], Row]


def _start(play: Callable[[Any], Row], prepare: Callable[[], None]) -> None:
    # Ctrl-C goes to the whole group of processes; the parent ends the workers,
    # or they end because it is gone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    _CellWorker.play = play
    prepare()


def _play(cell: Any) -> Row:
    began = time.perf_counter()
    row = {"cell": asdict(cell)} | _CellWorker.play(cell)
    return row | {"wall_s": round(time.perf_counter() - began, 1)}
