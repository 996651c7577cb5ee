"""Cost of local steps in loss, and their saving in bytes: a transformer over characters,
real processes.

    python benchmarks/local_steps.py --text tinyshakespeare.txt

Each cell is one `gossip run` with equal samples: local steps, the outer step, fragments, the
topology and a seed. What was run is in the folder of --into: after Ctrl-C the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from whole_runs import HERE, run_gossip, summary_of

from gossip_lab.cells import CellStore, Row, run_cells
from gossip_lab.estimates import Estimate
from gossip_lab.pages import markdown_table

SCRIPT = HERE / "char_gpt.py"
RUN_TIMEOUT_S = 3600.0
NESTEROV, MEAN = "nesterov", "mean"
COLUMNS = (
    *("topology", "local steps", "outer step", "fragments", "overlap", "validation loss"),
    *("over 1", "MiB a peer", "rounds", "MiB a peer and round"),
)


@dataclass(frozen=True)
class Cell:
    """One run."""

    local_steps: int
    outer: str
    topology: str
    seed: int
    steps: int
    lr: float
    fragments: int = 1
    overlap: int = 0


def play(text: Path, peers: int, cell: Cell) -> Row:
    """Play a run. Raises: Failed: It did not end well."""
    with tempfile.TemporaryDirectory(prefix="gossip-benchmark-") as scratch:
        result, run = Path(scratch) / "result.json", Path(scratch) / "run"
        options = ["--outer", cell.outer] if cell.outer else []
        words = [
            *["-n", str(peers), "--aggregator", "mean", "--seed", str(cell.seed)],
            *["--topology", cell.topology, "--local-steps", str(cell.local_steps), *options],
            *["--fragments", str(cell.fragments), "--overlap", str(cell.overlap)],
            *["--round-timeout", "120", "--run-dir", str(run), str(SCRIPT)],
            *["--text", str(text), "--steps", str(cell.steps), "--lr", str(cell.lr)],
            *["--result", str(result)],
        ]
        run_gossip(words, RUN_TIMEOUT_S)
        summary = summary_of(run)
        found: dict[str, Any] = json.loads(result.read_text())
        return {
            **found,
            "bytes": summary["bytes_sent"] / peers,
            "rounds": summary["rounds"],
            "identical": summary["replicas_identical"],
        }


def _kind(cell: Cell) -> tuple[str, int, str, int, int]:
    """All but the seed."""
    return cell.topology, cell.local_steps, cell.outer, cell.fragments, cell.overlap


def table(cells: Sequence[Cell], rows: dict[Cell, Row]) -> list[str]:
    """Markdown: a row for each kind of cell, the mean of its seeds and their standard error."""
    kinds = list(dict.fromkeys(map(_kind, cells)))
    lines: list[list[str]] = []
    base: dict[str, float] = {}
    for kind in kinds:
        topology, steps, outer, fragments, overlap = kind
        of = [rows[cell] for cell in cells if _kind(cell) == kind and cell in rows]
        if not of:
            continue
        loss = Estimate(tuple(row["validation"] for row in of))
        error = f" ± {loss.error:.3f}" if len(of) > 1 else ""
        if steps == 1:
            base[topology] = loss.mean
        over = f"{100 * (loss.mean / base[topology] - 1):+.1f} %" if topology in base else ""
        sent = statistics.fmean(row["bytes"] for row in of) / 2**20
        setting = [topology, str(steps), outer or "none: gradients", str(fragments), str(overlap)]
        rounds = of[0]["rounds"]
        bytes_sent = [f"{sent:.1f}", str(rounds), f"{sent / rounds:.2f}"]
        lines.append([*setting, f"{loss.mean:.3f}{error}", over, *bytes_sent])
    return markdown_table(COLUMNS, lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True, help="a file of plain text")
    parser.add_argument("-n", "--peers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300, help="of each peer")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--local-steps", type=int, nargs="+", default=[1, 10, 30, 100])
    parser.add_argument("--outer", nargs="+", default=[MEAN, NESTEROV])
    parser.add_argument("--fragments", type=int, nargs="+", default=[1], help="with local steps")
    parser.add_argument("--overlap", type=int, nargs="+", default=[0], help="with local steps")
    parser.add_argument("--topology", nargs="+", default=["rolling"])
    parser.add_argument("--into", type=Path, default=Path("runs/local_steps"))
    parser.add_argument("--out", type=Path, help="file for the table")
    parser.add_argument("--show", action="store_true", help="run nothing")
    options = parser.parse_args()
    cells = [
        Cell(steps, outer, topology, seed, options.steps, options.lr, fragments, overlap)
        for seed in range(options.seeds)
        for topology in options.topology
        for steps in options.local_steps
        for outer in (options.outer if steps > 1 else [""])
        for fragments in (options.fragments if steps > 1 else [1])
        for overlap in (options.overlap if steps > 1 else [0])
    ]
    store: CellStore[Cell, Row] = CellStore(options.into)
    of_text = partial(play, options.text.resolve(), options.peers)
    rows = store.read_all(cells) if options.show else run_cells(cells, of_text, store, 1)
    lines = table(cells, rows)
    print("\n".join(lines))
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
