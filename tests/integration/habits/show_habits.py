"""Prints the table of habits from real runs: ``make habits``. Exits with 1 on a deviation."""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # of zygote

from habit_runs import HabitRuns
from habit_table import HABITS, SITUATIONS, is_due

WIDTH, CELL = 26, 26


def run_row(name: str, situations: list[str], folder: Path) -> dict[str, tuple[str, float]]:
    """Return the outcome of a habit in each situation, and the seconds that each took."""
    runs, row = HabitRuns(name, folder / name), {}
    for situation in situations:
        began = time.monotonic()
        outcome = runs.outcome(situation)
        row[situation] = outcome, time.monotonic() - began
    if all(outcome == HABITS[name].expected(each) for each, (outcome, _) in row.items()):
        shutil.rmtree(folder / name, ignore_errors=True)
    return row


def cell(name: str, situation: str, outcome: str, took_s: float) -> str:
    if outcome == HABITS[name].expected(situation):
        mark = "" if is_due(name, situation) else " (not in NOT_YET any more)"
        return f"{outcome.replace('refused ', 'r:')} {took_s:.1f}s{mark}"
    return f"{'FAILED' if is_due(name, situation) else 'not yet'} {took_s:.1f}s"


def main() -> int:
    """Print a row for each habit, and how each deviation differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="HABIT", help="all by default")
    parser.add_argument("--situations", default=",".join(SITUATIONS), help="joined by commas")
    parser.add_argument("--jobs", type=int, default=2, help="habits at once")
    options = parser.parse_args()
    names, situations = options.names or list(HABITS), options.situations.split(",")
    unknown = [*({*names} - HABITS.keys()), *({*situations} - SITUATIONS.keys())]
    if unknown:
        parser.error(f"not in the table: {', '.join(sorted(unknown))}")
    folder = Path(tempfile.mkdtemp(prefix="habits-"))
    spawned = multiprocessing.get_context("spawn")
    deviations, seconds = [], dict.fromkeys(situations, 0.0)
    print(f"{'habit':{WIDTH}}" + "".join(f"{situation:{CELL}}" for situation in situations))
    with ProcessPoolExecutor(options.jobs, mp_context=spawned) as pool:
        rows = pool.map(partial(run_row, situations=situations, folder=folder), names)
        for name, row in zip(names, rows, strict=True):
            cells = [cell(name, each, *row[each]) for each in situations]
            print(f"{name:{WIDTH}}" + "".join(f"{text:{CELL}}" for text in cells), flush=True)
            for situation, (outcome, took_s) in row.items():
                seconds[situation] += took_s
                expected = HABITS[name].expected(situation)
                if outcome != expected and is_due(name, situation):
                    deviations.append(f"{name}, {situation}: {outcome}, not {expected}")
    print(f"{'seconds':{WIDTH}}" + "".join(f"{seconds[each]:<{CELL}.0f}" for each in situations))
    if deviations:
        print(
            "\n".join([f"{len(deviations)} deviations; their files are in {folder}", *deviations])
        )
    return bool(deviations)


if __name__ == "__main__":
    sys.exit(main())
