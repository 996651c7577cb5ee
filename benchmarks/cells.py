"""Many independent runs, each a cell of a table and a seed: side by side, kept in a file, and gone
on with after Ctrl-C."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from mnist import VARIABLE, NoData, path_of

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


def add_arguments(parser: argparse.ArgumentParser, into: Path, jobs: int, seeds: int) -> None:
    """Add the options that every table takes. The other arguments are their defaults."""
    parser.add_argument("--data", type=Path, help=f"mnist.npz; or the variable {VARIABLE}")
    parser.add_argument("--seeds", type=int, default=seeds, help="seeds 0 to N - 1 of every cell")
    parser.add_argument("--jobs", type=int, default=jobs, help="processes")
    parser.add_argument("--into", type=Path, default=into, help="file of the runs made so far")
    parser.add_argument(
        "--write", type=Path, help="Markdown page to put the table in, between its two markers"
    )
    parser.add_argument(
        "--only-done", action="store_true", help="run nothing: the table of the runs in --into"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the rows as JSON instead of the table"
    )


def rows_done(
    cells: Sequence[Any],
    play: Callable[[Any], Row],
    options: argparse.Namespace,
    prepare: Callable[..., None],
    *given: Any,
) -> list[Row]:
    """``run_all`` as ``add_arguments`` has it, with the data's path before ``given``: the rows that
    there are then, in the order of the cells. Exits with 2 where there are no data,
    and with 130 after Ctrl-C."""
    if options.seeds < 1 or options.jobs < 1:
        raise SystemExit("--seeds and --jobs are at least 1")
    try:
        if options.only_done:
            rows = run_all(cells, play, options.into, prepare, jobs=0)
        else:
            begin = partial(prepare, str(path_of(options.data)), *given)
            rows = run_all(cells, play, options.into, begin, options.jobs)
    except NoData as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on from {options.into}", file=sys.stderr)
        raise SystemExit(130) from None
    return [rows[name] for name in map(name_of, cells) if name in rows]


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


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation; None of a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def put_between(page: Path, name: str, text: str) -> None:
    """Replaces what stands between ``<!-- name -->`` and ``<!-- end of name -->`` in a page.
    A page that is not there is made."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    found = page.read_text() if page.exists() else f"{begin}\n{end}\n"
    if begin not in found or end not in found:
        raise SystemExit(f"{page} has no lines {begin} and {end} to put the table between")
    before, rest = found.split(begin, 1)
    page.write_text(before + begin + "\n" + text.rstrip("\n") + "\n" + end + rest.split(end, 1)[1])
