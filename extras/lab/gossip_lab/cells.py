"""Cells of a table, run in parallel. The result of each cell is stored in its own file, so the same
command resumes after an interrupt.

    store = CellStore(Path("runs/mine"), asdict, lambda cell, row: row)
    rows = run_cells([MyCell(seed) for seed in range(5)], play, store, jobs=2)

A cell is a frozen dataclass, and ``play(cell)`` returns its row, a dictionary of JSON values.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from hashlib import blake2b
from multiprocessing import active_children
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Generic, TypeVar

from gossip.errors import ConfigError, LocalError
from gossip.interpreter import spawn_context
from gossip.launch.report import counted

from .workers import end_with_parent

SCHEMA = "gossip.cell/1"
PROGRESS_S = 10.0
LABEL_CHARS = 80
WRITABLE = "--into must name a writable folder"
ERROR = "error"
"""Key for an error in a row. A row with an error is returned but not stored, so the cell is run
again after the cause is removed."""

Row = dict[str, Any]
Cell = TypeVar("Cell", bound=Hashable)
Result = TypeVar("Result")


class CellStore(Generic[Cell, Result]):
    """Folder with the rows of cells, one file each.

    Attributes:
        folder: Folder of the rows; ``make_folder`` creates it.
        facts_of: Returns all facts that affect the row of a cell, as JSON values. Cells with equal
            facts share a row.
        result_of: Converts the row of a cell to its result, or to None if the row lacks a value
            that the cell needs.
    """

    def __init__(
        self,
        folder: Path,
        facts_of: Callable[[Cell], Mapping[str, Any]],
        result_of: Callable[[Cell, Row], Result | None],
    ) -> None:
        self.folder, self.facts_of, self.result_of = folder, facts_of, result_of

    def path(self, cell: Cell) -> Path:
        """Return the file of a cell. Its name begins with the readable facts and ends with a hash
        of them."""
        facts = self.facts_of(cell)
        label = "-".join(str(fact) for fact in facts.values())[:LABEL_CHARS]
        plain = "".join(char if char.isalnum() or char in "-_." else "_" for char in label)
        text = json.dumps(facts, sort_keys=True)
        return self.folder / f"{plain}-{blake2b(text.encode(), digest_size=6).hexdigest()}.json"

    def read_row(self, cell: Cell) -> Row | None:
        """Return the stored row. Return None if no row is stored or the file is damaged."""
        return _row_in(self.path(cell))

    def read(self, cell: Cell) -> Result | None:
        """Return the stored result; None if the cell has to be run."""
        row = self.read_row(cell)
        return None if row is None else self.result_of(cell, row)

    def read_all(self, cells: Iterable[Cell]) -> dict[Cell, Result]:
        """Return the results of the cells that were run before."""
        return {
            cell: result for cell in dict.fromkeys(cells) if (result := self.read(cell)) is not None
        }

    def rows(self) -> Iterator[Row]:
        """Yield all rows in the folder, whatever their cells."""
        for path in sorted(self.folder.glob("*.json")):
            if (row := _row_in(path)) is not None:
                yield row

    def write(self, cell: Cell, row: Row) -> None:
        """Write the file completely or not at all. Raises: ConfigError: It cannot be written."""
        path = self.path(cell)
        scratch = path.with_suffix(".new")
        stored = {"schema": SCHEMA, "cell": self.facts_of(cell), "row": row}
        try:
            scratch.write_text(json.dumps(stored) + "\n", "utf-8")
            scratch.replace(path)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}", WRITABLE) from error

    def keep(self, cell: Cell, row: Row) -> Result:
        """Write the row of a finished cell, unless the row has an error, and return the cell's
        result."""
        if not row.get(ERROR):
            self.write(cell, row)
        result = self.result_of(cell, row)
        assert result is not None
        return result

    def make_folder(self) -> None:
        """Create the folder. Raises: ConfigError: The folder cannot be created or written to."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Without this test an unwritable folder would be noticed only after the first run.
            with TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise ConfigError(
                f"cannot write to the folder {self.folder}: {error.strerror}", WRITABLE
            ) from error


def _row_in(path: Path) -> Row | None:
    try:
        stored = json.loads(path.read_text("utf-8"))
        row: Row | None = stored["row"] if stored["schema"] == SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return row


def run_cells(
    cells: Iterable[Cell],
    play: Callable[[Cell], Row],
    store: CellStore[Cell, Result],
    jobs: int,
    *,
    quiet: bool = False,
) -> dict[Cell, Result]:
    """Run the cells that are not in the store yet, and return the results of all cells.

    Args:
        play: Runs one cell in a worker process with one torch thread.
        jobs: Number of worker processes.

    Raises:
        ConfigError: The folder cannot be created or written to.
        LocalError: A process was killed; finished cells are stored.
        KeyboardInterrupt: Ctrl-C was pressed; finished cells are stored.
    """
    return run_missing(cells, partial(_run_in_pool, play, jobs), store, quiet=quiet)


def run_missing(
    cells: Iterable[Cell],
    run: Callable[[list[Cell], Callable[[Cell, Row], None]], None],
    store: CellStore[Cell, Result],
    *,
    quiet: bool = False,
) -> dict[Cell, Result]:
    """Run the cells that are not in the store yet, and return the results of all cells.

    Args:
        run: Runs the missing cells. It passes each cell and its row to its second argument as soon
            as the cell is finished.

    Raises: ConfigError: The folder cannot be created or written to.
    """
    wanted = list(dict.fromkeys(cells))
    found = store.read_all(wanted)
    missing = [cell for cell in wanted if cell not in found]
    if not missing:
        return found
    store.make_folder()
    progress = ProgressLines(len(missing), len(found), quiet)

    def keep(cell: Cell, row: Row) -> None:
        found[cell] = store.keep(cell, row)
        progress.add_one()

    try:
        run(missing, keep)
    except BaseException:
        progress.print_stop(store.folder)
        raise
    return {cell: found[cell] for cell in wanted}


def _run_in_pool(
    play: Callable[[Cell], Row], jobs: int, cells: list[Cell], keep: Callable[[Cell, Row], None]
) -> None:
    others = set(active_children())
    with spawn_context() as context:
        pool = ProcessPoolExecutor(min(jobs, len(cells)), context, _begin)
        try:
            running = {pool.submit(play, cell): cell for cell in cells}
            for done in as_completed(running):
                keep(running[done], done.result())
        except BaseException as error:
            workers = set(active_children()) - others
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.terminate()
            if isinstance(error, BrokenProcessPool):
                raise LocalError(
                    "a process of the cells was killed, perhaps for lack of memory "
                    f"({counted(jobs, 'job')})"
                ) from error
            raise
        pool.shutdown()


def _begin() -> None:
    """Prepare a new worker. It ignores Ctrl-C, because the parent ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


class ProgressLines:
    """Progress lines on stderr, each with the estimated remaining time, at most one every
    ``PROGRESS_S``."""

    def __init__(self, total: int, known: int, quiet: bool) -> None:
        self.total, self.done, self.quiet = total, 0, quiet
        self.began = self.printed = time.monotonic()
        before = f", {known} {'was' if known == 1 else 'were'} run before" if known else ""
        self._print_line(f"{counted(total, 'cell')} to run{before}")

    def add_one(self) -> None:
        self.done += 1
        now = time.monotonic()
        if now - self.printed >= PROGRESS_S or self.done == self.total:
            self.printed = now
            left_s = (now - self.began) / self.done * (self.total - self.done)
            self._print_line(
                f"{self.done} of {counted(self.total, 'cell')}, {now - self.began:.0f} s, "
                f"{left_s:.0f} s left"
            )

    def print_stop(self, folder: Path) -> None:
        self._print_line(
            f"stopped after {self.done} of {counted(self.total, 'cell')}; the same command "
            f"continues from {folder}"
        )

    def _print_line(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)
