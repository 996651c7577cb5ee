"""Cells as nodes of a DAG of HTCondor: the files for ``condor_submit_dag``, and the job of a node.

All machines share the folder of the sweep and the working directory. A node of the DAG is an
ordinary command, so it also runs without HTCondor.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gossip.errors import ConfigError
from gossip.interpreter import python_command
from gossip_lab.playground.grids import (
    CellResult,
    Grid,
    WorldCell,
    play_cell,
    store_of,
    toml_of_cell,
)

from .settings import SweepSettings

DAG, SUBMIT = "sweep.dag", "cell.sub"
RETRIES = 3
CELL_ERROR = 2
"""Exit code for an error in the cell itself. HTCondor does not retry the node after it."""


def run(cells: Sequence[WorldCell], settings: SweepSettings) -> dict[WorldCell, CellResult]:
    """Write the DAG of the missing cells, and return the available results."""
    store = store_of(settings.cells)
    store.make_folder()
    found = store.read_all(cells)
    folder = settings.folder.resolve() / "condor"
    rows = []
    try:
        folder.mkdir(exist_ok=True)
        for at, cell in enumerate(cell for cell in cells if cell not in found):
            place = folder / store.path(cell).with_suffix(".toml").name
            place.write_text(toml_of_cell(cell), "utf-8")
            rows += [
                f"JOB cell{at} {folder / SUBMIT}",
                f'VARS cell{at} cell="{place}"',
                f"RETRY cell{at} {RETRIES} UNLESS-EXIT {CELL_ERROR}",
            ]
        (folder / SUBMIT).write_text(_description(folder, settings.cells.resolve()), "utf-8")
        (folder / DAG).write_text("\n".join([*rows, ""]), "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}") from error
    if rows and not settings.quiet:
        # -f ignores an earlier rescue DAG, which has nodes for other cells.
        print(
            f"condor_submit_dag -f {folder / DAG} runs {len(rows) // 3} cells; then the same "
            f"command {'goes on' if settings.asha else 'with --show makes the tables'}",
            file=sys.stderr,
        )
    return found


def _description(folder: Path, cells: Path) -> str:
    python, *words = python_command("-m", "gossip_lab.playground.engines.condor_dag", str(cells))
    commands = {
        "universe": "vanilla",
        "executable": python,
        "transfer_executable": "false",
        "arguments": f"\"{' '.join(map(_quoted, words))} '$(cell)'\"",
        "environment": '"OMP_NUM_THREADS=1"',
        "initialdir": str(Path.cwd()),
        "should_transfer_files": "NO",
        "request_cpus": "1",
        "request_memory": "2 GB",
        "output": str(folder / "$(ClusterId).out"),
        "error": str(folder / "$(ClusterId).err"),
        "log": str(folder / "sweep.log"),
    }
    return "".join(f"{name} = {value}\n" for name, value in commands.items()) + "queue\n"


def _quoted(word: str) -> str:
    inner = word.replace('"', '""').replace("'", "''")
    return f"'{inner}'"


def main(cells: str, place: str) -> int:
    """Play the cell in the file ``place``, and store its result in the folder ``cells``. Return the
    exit code."""
    (cell,) = Grid.from_toml(place).cells
    result = store_of(Path(cells)).keep(cell, play_cell(cell))
    if result.error:
        print(result.error, file=sys.stderr)
    return CELL_ERROR if result.error else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
