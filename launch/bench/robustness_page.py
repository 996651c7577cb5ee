"""The tables of ``gossip bench robustness`` as a page with heat maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

from gossip.errors import ConfigError
from gossip.launch.report import counted

if TYPE_CHECKING:
    from .learning import Trial, TrialResult
    from .robustness import RobustnessCell, RobustnessTable

    Found = Mapping[Trial, TrialResult]

DASH = "-"
NOT_RUN = "?"
fill = TextWrapper(100, break_on_hyphens=False).fill


def check_place(path: Path) -> None:
    """To be asked before hours of work. Raises: ConfigError: A page cannot be written there, or
    nothing beside it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path.parent):
            pass
        if path.exists():
            path.open("a").close()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def write(
    path: Path, tables: Sequence[RobustnessTable], found: Found, head: Sequence[str], plot: bool
) -> None:
    """The page, with ``head`` above the tables, and a heat map for each table beside it.

    Raises: ConfigError: It cannot be written.
    """
    lines = [*head]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for table in tables:
            lines += ["", title(table), ""]
            if plot:
                picture = path.with_name(f"{path.stem}-{table.f}-of-{table.n}.png")
                draw(table, found, picture)
                lines += [
                    (
                        f"![accuracy of each rule under each attack, {table.f} of {table.n} "
                        f"lie]({picture.name})"
                    ),
                    "",
                ]
            lines += section(table, found)
        path.write_text("\n".join(lines) + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def head(tables: Sequence[RobustnessTable], found: Found, data: str, command: str) -> list[str]:
    """What is said above the tables. ``command``: what makes the page."""
    table = tables[0]
    shared = table.shared
    workers = (
        "drawn from all samples"
        if not shared["non_iid"]
        else "the honest ones' sorted by label, the liars' drawn from all"
    )
    sender = (
        f"each worker's update through `{shared['sender']}`"
        if shared["sender"]
        else "updates sent as they are (no momentum)"
    )
    seeds = ", ".join(map(str, table.seeds))
    what = (
        "Which rule learns under which attack: n simulated workers, f of them liars who see every "
        "honest update of the round and, for `adaptive` and `optimal_*`, try themselves on the "
        "very rule before they send. One process a run, plain SGD, no network; real processes are "
        "in [attacks.md](attacks.md). This command makes the page, and goes on after Ctrl-C:"
    )
    setting = (
        f"Data `{data}`; a network with {shared['hidden']} hidden units; "
        f"{counted(shared['rounds'], 'round')}, learning rate {shared['lr']:g}; "
        f"{counted(shared['batch'], 'sample')} a worker and round, {workers}; {sender}; seeds "
        f"{seeds}."
    )
    reading = (
        "A cell is the test accuracy in percent at the end (mean of the last five tests), mean ± "
        "standard deviation over the seeds. It **fails** when its mean is below "
        f"{100 * table.fails_below:g} % of what plain averaging of the n-f honest workers alone "
        f"reaches. All rules are told the true f. `{DASH}` means that the rule cannot be run so; "
        "why is said below the table. `none`: nobody lies. `worst` is the lowest cell of the row."
    )
    reached = " and ".join(f"{100 * each.reference(found):.1f} %" for each in tables)
    seeds_told = "one seed" if len(table.seeds) == 1 else f"{len(table.seeds)} seeds"
    limits = (
        f"This is {seeds_told} and {counted(shared['rounds'], 'round')}: averaging without any "
        f"liar reaches {reached} in that time, and would reach more in a longer run. That a rule "
        f"holds says that it kept {100 * table.fails_below:g} % of this against these attacks, "
        "not that it loses nothing, nor that no other attack breaks it; what lies within the ± is "
        "no difference."
    )
    return [
        "# Rules and attacks",
        "",
        fill(what),
        "",
        f"    {command}",
        "",
        fill(setting),
        "",
        fill(reading),
        "",
        fill(limits),
        *_calculated(tables, found),
    ]


def _calculated(tables: Sequence[RobustnessTable], found: Found) -> list[str]:
    """What calculated it: another processor may come to other cells. Nothing,
    where no run kept it."""
    seen = {arithmetic for table in tables for arithmetic in table.arithmetics(found)}
    if not any(seen):
        return []
    what = " and ".join(sorted(arithmetic or "what was not kept" for arithmetic in seen))
    text = (
        f"Calculated with {what}. Other processors and versions of torch round sums differently: "
        "cells change in their last digit, and altogether where training diverges or one step "
        "decides."
    )
    return ["", fill(text)]


def title(table: RobustnessTable) -> str:
    return f"## f = {table.f} of {table.n}"


def section(table: RobustnessTable, found: Found) -> list[str]:
    """The table as Markdown: rules down, the hardest to break first; attacks across; then what
    holds and what cannot be run."""
    reference = table.reference(found)
    order = _by_strength(table, found)
    limit = table.fails_below * reference
    lines = [
        (
            f"Without the liars, averaging reaches {100 * reference:.1f} %; a cell fails below "
            f"{100 * limit:.1f} %."
        ),
        "",
        "| rule | worst | " + " | ".join(f"`{attack}`" for attack in table.attacks) + " |",
        "|---" * (len(table.attacks) + 2) + "|",
    ]
    reasons: dict[str, list[str]] = {}
    for rule in order:
        cells = [table.cell(rule, attack, found) for attack in table.attacks]
        worst = table.worst(rule, found)
        least = DASH if worst is None else text_of(worst[1])
        lines.append(f"| `{rule}` | {least} | " + " | ".join(map(text_of, cells)) + " |")
        for why in dict.fromkeys(cell.why for cell in cells if cell.why):
            reasons.setdefault(why, []).append(f"`{rule}`")
    lines += ["", *_verdict(table, found, order)]
    lines += [f"- Cannot be run: {', '.join(rules)}: {why}." for why, rules in reasons.items()]
    return [*lines, *_lost(table, found, order)]


def _lost(table: RobustnessTable, found: Found, order: Sequence[str]) -> list[str]:
    """Which rules made no step in how many rounds, and why; one line for each rule and reason."""
    lines = []
    for rule in order:
        under: dict[str, list[str]] = {}
        for attack in table.attacks:
            cell = table.cell(rule, attack, found)
            if any(cell.skipped):
                rounds = len(cell.skipped) * table.shared["rounds"]
                under.setdefault(cell.trouble or "no reason was kept", []).append(
                    f"`{attack}` ({sum(cell.skipped)} of {counted(rounds, 'round')})"
                )
        lines += [
            f"- `{rule}` made no step under {', '.join(attacks)}: {why}."
            for why, attacks in under.items()
        ]
    return lines


def text_of(cell: RobustnessCell) -> str:
    if not cell.accuracies:
        return DASH if cell.why else NOT_RUN
    spread = f" ± {100 * cell.deviation:.1f}" if len(cell.accuracies) > 1 else ""
    text = f"{100 * cell.mean:.1f}{spread}"
    return f"**fails** ({text})" if cell.fails else text


def _by_strength(table: RobustnessTable, found: Found) -> list[str]:
    def worst(rule: str) -> tuple[float, str]:
        found_worst = table.worst(rule, found)
        return (2.0 if found_worst is None else -found_worst[1].mean, rule)

    return sorted(table.rules, key=worst)


def _verdict(table: RobustnessTable, found: Found, order: Sequence[str]) -> list[str]:
    holding, failing, waiting = [], [], 0
    for rule in order:
        waiting += sum(
            text_of(table.cell(rule, attack, found)) == NOT_RUN for attack in table.attacks
        )
        under = [attack for attack in table.attacks if table.cell(rule, attack, found).fails]
        if under:
            failing.append(f"`{rule}` fails under {', '.join(f'`{attack}`' for attack in under)}")
        elif all(table.cell(rule, attack, found).accuracies for attack in table.attacks):
            holding.append(f"`{rule}`")
    count = len(table.attacks)
    everything = (
        f"all {count} attacks"
        if count > 2
        else "both attacks"
        if count == 2
        else f"`{table.attacks[0]}`"
    )
    none = "No rule is known to hold" if waiting else "No rule holds"
    lines = [
        f"- Under {everything} hold: {', '.join(holding)}."
        if holding
        else f"- {none} under {everything}."
    ]
    if waiting:
        lines.append(
            f"- {NOT_RUN}: {waiting} {'cell was' if waiting == 1 else 'cells were'} not run yet."
        )
    return [*lines, *(f"- {line}." for line in failing)]


def draw(table: RobustnessTable, found: Found, path: Path) -> None:
    """Rules down, attacks across, the accuracy in each square; red is bad, grey cannot be run."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rules = _by_strength(table, found)
    cells: dict[tuple[str, str], RobustnessCell] = {
        (r, a): table.cell(r, a, found) for r in rules for a in table.attacks
    }
    values: list[list[Any]] = [
        [
            100 * cells[rule, attack].mean if cells[rule, attack].accuracies else float("nan")
            for attack in table.attacks
        ]
        for rule in rules
    ]
    size = (2.6 + 0.42 * len(table.attacks), 1.9 + 0.27 * len(rules))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    colours = plt.get_cmap("RdYlGn").with_extremes(bad="0.85")
    best = 100 * table.reference(found)
    picture = axes.imshow(
        values, cmap=colours, vmin=10, vmax=max(best, 11), aspect="auto", alpha=0.75
    )
    axes.set_xticks(range(len(table.attacks)), table.attacks, rotation=60, ha="right", fontsize=8)
    axes.set_yticks(range(len(rules)), rules, fontsize=8)
    for row, rule in enumerate(rules):
        for column, attack in enumerate(table.attacks):
            cell = cells[rule, attack]
            words = f"{100 * cell.mean:.0f}" if cell.accuracies else text_of(cell)
            weight = "bold" if cell.fails else "normal"
            axes.text(column, row, words, ha="center", va="center", fontsize=7, fontweight=weight)
    axes.set_title(
        f"test accuracy in %, {table.f} of {table.n} lie (bold: fails; {best:.0f} without liars)",
        fontsize=9,
    )
    figure.colorbar(picture, ax=axes, shrink=0.6)
    figure.savefig(path, dpi=110)
    plt.close(figure)
