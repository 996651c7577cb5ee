"""Writes the page ``docs/results/gossip_robustness.md``: rules under attack in gossip rounds.

    python benchmarks/gossip_robustness.py -j 2

Every cell is stored in ``--into``: after an interrupt the same command resumes.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from gossip_lab.bench.robustness_page import NOT_RUN, fill, made_text, percent
from gossip_lab.bench.trial_store import arithmetic
from gossip_lab.estimates import Estimate
from gossip_lab.pages import markdown_table, replace_between
from gossip_lab.playground.engines import LOCAL, SweepSettings
from gossip_lab.playground.grids import Grid
from gossip_lab.playground.sweeps import Sweep, read_sweep, run_grid

GRID = Path(__file__).parent / "worlds/gossip_robustness.toml"
PAGE = Path("docs/results/gossip_robustness.md")
NONE, REFERENCE = "none", "mean"
KEPT = 0.9
"""Minimum accuracy of a cell, as a share of the accuracy that the rule ``mean`` has without
attackers. Lower cells are bold."""
Cells = Mapping[tuple[str, str, str], Estimate]
"""Accuracy of the worst honest peer after the last round; the key is (topology, rule, attack)."""


def cells_of(sweep: Sweep) -> Cells:
    """Return the cells that were played with at least one seed."""
    at = [sweep.settings.index(name) for name in ("topology", "aggregator", "faults")]
    found = {}
    for setting, rounds in sweep.means("worst").items():
        topology, rule, faults = (setting[each] for each in at)
        if rounds:
            found[topology, rule, attack_of(faults)] = rounds[max(rounds)]
    return found


def attack_of(faults: tuple[str, ...]) -> str:
    """Return the attack and its strength: ``sign_flip*10`` for ``sign_flip:18,19*10``."""
    if not faults:
        return NONE
    attack, _, peers = faults[0].partition(":")
    _, star, strength = peers.partition("*")
    return attack + star + strength


def table(cells: Cells, topology: str) -> list[str]:
    """Return the lines of a topology's table: a row for each rule, a column for each attack."""
    rules = list(dict.fromkeys(rule for _, rule, _ in cells))
    attacks = list(dict.fromkeys(attack for *_, attack in cells))
    reference = cells.get((topology, REFERENCE, NONE))
    limit = KEPT * reference.mean if reference else 0.0
    rows = []
    for rule in rules:
        row = [cells.get((topology, rule, attack)) for attack in attacks]
        known = [each for each in row if each is not None]
        worst = min(known, key=lambda each: each.mean, default=None)
        rows.append([f"`{rule}`", *(_shown(each, limit) for each in (worst, *row))])
    return markdown_table(("rule", "worst", *(f"`{attack}`" for attack in attacks)), rows)


def _shown(estimate: Estimate | None, limit: float) -> str:
    if estimate is None:
        return NOT_RUN
    text = percent(estimate)
    return f"**{text}**" if estimate.mean < limit else text


def page(sweep: Sweep) -> list[str]:
    """Return the lines of all tables, and the commands that made them."""
    cells = cells_of(sweep)
    lines = [_made(sweep)]
    for topology in dict.fromkeys(topology for topology, *_ in cells):
        lines += ["", f"## `{topology}`", "", *table(cells, topology)]
    return lines


def _made(sweep: Sweep) -> str:
    text = f"{made_text(Path(__file__).parent)}, {arithmetic()}."
    cells = len(sweep.grid.cells)
    if missing := sweep.missing + len(sweep.errors):
        text += f" **{missing} of {cells} runs are missing**: `{NOT_RUN}`, or fewer seeds."
    return fill(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-j", "--jobs", type=int, default=1, help="cells at once")
    parser.add_argument("--into", type=Path, default=Path("runs/gossip_robustness"))
    parser.add_argument("--write", type=Path, default=PAGE, help="page with the marks of tables")
    parser.add_argument("--show", action="store_true", help="show only the finished cells")
    options = parser.parse_args()
    grid, settings = Grid.from_toml(GRID), SweepSettings(options.into, options.jobs)
    sweep = read_sweep(grid, settings) if options.show else run_grid(grid, settings, LOCAL)
    replace_between(options.write, "tables", page(sweep))
    for error in sweep.errors:
        print(error)


if __name__ == "__main__":
    main()
