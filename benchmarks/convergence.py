"""Tests the guarantee "eventually converges". Each scenario has a twin that lacks one condition of
the guarantee.

python benchmarks/convergence.py --seeds 50 --jobs 2 --write docs/results/convergence.md
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gossip_lab.pages import markdown_table, replace_between
from gossip_lab.playground.convergence import (
    CONSENSUS_MAX,
    SCENARIOS,
    Behind,
    Verdict,
    judge,
)
from gossip_lab.playground.grids import store_of

COLUMNS = (
    "scenario",
    "what the twin lacks",
    "distance",
    "excess loss",
    "",
    "twin",
    "twin's loss",
    "",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--into", type=Path, default=Path("runs/convergence"))
    parser.add_argument("--only", nargs="*", default=list(SCENARIOS), choices=list(SCENARIOS))
    parser.add_argument("--write", type=Path, help="page with the table")
    given = parser.parse_args()
    store = store_of(given.into)
    seeds = range(given.seeds)
    found = {name: judge(SCENARIOS[name], seeds, store, given.jobs) for name in given.only}
    table = markdown_table(COLUMNS, [row_of(name, verdict) for name, verdict in found.items()])
    print("\n".join(table))
    if given.write is not None:
        replace_between(given.write, "convergence", table)
    return 0 if all(each.converges and each.twin_misses for each in found.values()) else 1


def row_of(name: str, verdict: Verdict) -> tuple[str, ...]:
    """Return the table row of a scenario: consensus distance and excess loss of its world and of
    the world of its twin."""
    converges = "converges" if verdict.converges else "**does not converge**"
    misses = "misses" if verdict.twin_misses else "**converges**"
    return (
        name,
        SCENARIOS[name].condition,
        *_cells(verdict.world),
        converges,
        *_cells(verdict.twin),
        misses,
    )


def _cells(behind: Behind) -> tuple[str, str]:
    distance, excess = behind.distance, behind.excess
    far = "" if max(distance.values) <= CONSENSUS_MAX else ", above the bound"
    return (
        f"{distance.mean:.3f} (at most {max(distance.values):.3f}{far})",
        f"{excess.mean:+.3g} ({behind.errors:+.1f} standard errors)",
    )


if __name__ == "__main__":
    sys.exit(main())
