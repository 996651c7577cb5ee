"""The tables of ``gossip bench robustness`` as a page with heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryFile
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

import numpy as np

from gossip import __version__
from gossip.aggregators.attacks import ATTACKS
from gossip.errors import ConfigError
from gossip.launch.report import counted
from gossip.run import code_version
from gossip_lab.estimates import Estimate
from gossip_lab.pages import markdown_table
from gossip_lab.splits import IID

if TYPE_CHECKING:
    from .tables import RobustnessCell, RobustnessRow, RobustnessTable

ALWAYS_SHOWN = ("model", "rounds", "batch", "lr", "split")
DASH = "-"
NOT_RUN = "?"
fill = TextWrapper(100, break_on_hyphens=False).fill


def check_place(path: Path) -> None:
    """Check before hours of work that the page can be written. Raises: ConfigError: The page, or a
    file next to it, cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path.parent):
            pass
        if path.exists():
            path.open("a").close()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def write(path: Path, tables: Sequence[RobustnessTable], head: Sequence[str], plot: bool) -> None:
    """Write the page, with ``head`` above the tables, and a heat map of each table as a file next
    to it.

    Raises: ConfigError: It cannot be written.
    """
    lines = [*head]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for table in tables:
            lines += ["", title(table), ""]
            if plot:
                picture = path.with_name(f"{path.stem}-{kind_of(table)}.png")
                draw(table, picture)
                lines += [
                    (
                        f"![accuracy of each rule under each attack, {table.f} of {table.n} "
                        f"lie]({picture.name})"
                    ),
                    "",
                ]
            if plot and table.settings()["every"]:
                picture = path.with_name(f"{path.stem}-curves-{kind_of(table)}.png")
                draw_curves(table, picture)
                lines += [f"![accuracy of each rule over the rounds]({picture.name})", ""]
            lines += section(table)
        path.write_text("\n".join(lines) + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def head(tables: Sequence[RobustnessTable], data: str, command: str) -> list[str]:
    """Return the text above the tables. ``command`` is the command that writes the page."""
    table = tables[0]
    what = (
        "Which rule learns under which attack? Of n simulated workers, f are Byzantine. These "
        "draw from all samples, know every honest update of the round and, for `adaptive` and "
        "`optimal_*`, test their updates on the rule first. Each run is one process, plain SGD, no "
        "network; real processes are in [attacks.md](attacks.md). This command makes the page, and "
        "continues after Ctrl-C:"
    )
    share = f"{100 * table.fails_below:g} %"
    reading = (
        "A cell is the test accuracy in percent at the end (mean of the last five tests): the mean "
        "over the seeds ± its standard error. The limit is "
        f"{share} of the accuracy of averaging the n-f honest workers alone. Each run is "
        "compared with the run of the same seed without attackers. A cell **fails** when it is "
        "below the limit, and *holds* when it is not, if that is not due to chance (Student's t "
        "of the differences). Otherwise it is *undecided*: more seeds might reverse it. Of the "
        "decided cells of a table, 5 % are wrong on average (Benjamini, Hochberg). "
        f"`{DASH}` means that the rule cannot be run; "
        "the reason is below the table. `none`: no attack. `worst` is the lowest cell of the row."
    )
    if len(table.choices) > 1:
        reading += (
            " Each rule has the settings with which it learns most under its worst attack, by the "
            "training samples that are held out; its last column names them."
        )
    reached = " and ".join(f"{100 * each.reference().mean:.1f} %" for each in tables)
    limits = (
        f"This is {counted(len(table.seeds), 'seed')} and "
        f"{counted(table.settings()['rounds'], 'round')}: averaging without any "
        f"attacker reaches {reached} in that time, and would reach more in a longer run. That a "
        f"rule holds means that it kept {share} of this under these attacks, not "
        "that it loses nothing, nor that no other attack breaks it; a difference within the ± "
        "is none."
    )
    settings = [(f"`{name}`", value) for name, value in settings_of(tables, data).items()]
    return [
        "# Rules and attacks",
        "",
        fill(what),
        "",
        f"    {command}",
        "",
        *markdown_table(("setting", "value"), settings),
        "",
        fill(reading),
        "",
        fill(limits),
        *_calculated(tables),
    ]


def settings_of(tables: Sequence[RobustnessTable], data: str) -> dict[str, str]:
    """Return the settings of the runs of these tables, by name: the most important settings, and
    all others that differ from their default."""
    chosen = [table.settings(choice) for table in tables for choice in table.choices]
    shown = {"data": data}
    for name, default in tables[0].defaults().items():
        values = list(dict.fromkeys(each[name] for each in chosen))
        if name in ALWAYS_SHOWN or values != [default]:
            shown[name] = " or ".join(str(value) if value != "" else "none" for value in values)
    return {**shown, "seeds": ", ".join(map(str, tables[0].seeds))}


def choice_text(table: RobustnessTable, rule: str) -> str:
    """Return the best settings for a rule as text, without settings that have only one value to
    choose from."""
    choice = table.chosen(rule)
    varied = [name for name in choice if len({each[name] for each in table.choices}) > 1]
    return ", ".join(f"{name} = {choice[name] or 'none'}" for name in varied)


def _calculated(tables: Sequence[RobustnessTable]) -> list[str]:
    """Return a line with the date, the commit, and the processors that the runs recorded."""
    seen = {arithmetic for table in tables for arithmetic in table.arithmetics()}
    text = f"{made_text(Path(__file__).parent)}."
    if any(seen):
        what = " and ".join(sorted(arithmetic or "an unrecorded processor" for arithmetic in seen))
        text += (
            f" Calculated with {what}. Other processors and versions of torch round sums "
            "differently: cells change in their last digit, and completely where training diverges "
            "or one step decides."
        )
    return ["", fill(text)]


def made_text(folder: Path) -> str:
    """Return the date, the version of gossip and the commit of the code in this folder."""
    version = code_version(folder)
    commit = f", commit {version['commit'][:8]}" if version is not None else ""
    return f"Made on {date.today().isoformat()} with gossip {__version__}{commit}"


def title(table: RobustnessTable) -> str:
    told = "" if table.declared_f == table.f else f", f = {table.declared_f} declared"
    split = "" if table.settings()["split"] == IID else f", `{table.settings()['split']}`"
    return f"## f = {table.f} of {table.n}{told}{split}{_steps_of(table)}"


def _steps_of(table: RobustnessTable) -> str:
    """Return the number of local steps and the outer optimizer as text, or an empty text without an
    outer optimizer."""
    settings = table.settings()
    if not settings["outer"]:
        return ""
    return f", {counted(settings['local_steps'], 'local step')}, `{settings['outer']}`"


def kind_of(table: RobustnessTable) -> str:
    """Return a name that is unique among the tables, for the picture and the label of this
    table."""
    told = "" if table.declared_f == table.f else f"-told-{table.declared_f}"
    split = (
        ""
        if table.settings()["split"] == IID
        else f"-{table.settings()['split'].replace(':', '-')}"
    )
    steps = "".join(char if char.isalnum() else "-" for char in _steps_of(table))
    return f"{table.f}-of-{table.n}{told}{split}{steps}"


def section(table: RobustnessTable) -> list[str]:
    """Return the table as Markdown. Rows are rules, the most robust first; columns are attacks.
    Below the table are the rules that hold and the rules that cannot be run."""
    reference = table.reference()
    limit = table.limit()
    rows = table.rows()
    last = ["settings"] if len(table.choices) > 1 else []
    low, high = (100 * end for end in limit.interval)
    between = f" (between {low:.1f} and {high:.1f} %)" if len(limit.values) > 1 else ""
    lines = [
        (
            f"Without attackers, averaging reaches {percent(reference)} %; the limit is "
            f"{100 * limit.mean:.1f} %{between}."
        ),
        "",
    ]
    texts = []
    reasons: dict[str, list[str]] = {}
    for row in rows:
        least = text_of(row.worst) if row.worst.accuracies else DASH
        settings = [choice_text(table, row.rule)] if last else []
        texts.append([f"`{row.rule}`", least, *map(text_of, row.cells.values()), *settings])
        for why in dict.fromkeys(cell.why for cell in row.cells.values() if cell.why):
            reasons.setdefault(why, []).append(f"`{row.rule}`")
    attacks = [f"`{attack}`" for attack in table.attacks]
    lines += markdown_table(("rule", "worst", *attacks, *last), texts)
    lines += ["", *_idle(table), *_verdict(table, rows)]
    lines += [f"- Cannot be run: {', '.join(rules)}: {why}." for why, rules in reasons.items()]
    lines += _lost(table, rows)
    if table.settings()["trust"]:
        lines += _quarantined(table, rows)
    return lines if table.settings()["split"] == IID else [*lines, *_worst_classes(table, rows)]


def _idle(table: RobustnessTable) -> list[str]:
    """Return a line with the attacks that send only the honest mean because there are too few
    workers."""
    idle = [
        f"`{attack}`"
        for attack in table.attacks
        if (known := ATTACKS.get(attack)) is not None and known.idle(table.n, table.f)
    ]
    return (
        [f"- No attack with {table.f} of {table.n} workers Byzantine: {', '.join(idle)}."]
        if idle
        else []
    )


def _quarantined(table: RobustnessTable, rows: Sequence[RobustnessRow]) -> list[str]:
    """Return one Markdown line per rule: the attacks under which honest workers were in quarantine,
    with the counts of honest and Byzantine workers in quarantine."""
    lines = []
    for row in rows:
        told = []
        for attack, cell in row.cells.items():
            outcomes = cell.outcomes
            liars = 0 if attack == "none" else table.f
            runs = len(outcomes)
            honest = sum(each.honest_quarantined for each in outcomes)
            found = sum(each.liars_quarantined for each in outcomes)
            if honest:
                told.append(
                    f"`{attack}` ({honest} of {runs * (table.n - liars)} honest workers, "
                    f"{found} of {runs * liars} liars)"
                )
        if told:
            under = ", ".join(told)
            lines.append(f"- `{row.rule}` had honest workers in quarantine under {under}.")
    return lines or ["- No honest worker was ever in quarantine."]


def _worst_classes(table: RobustnessTable, rows: Sequence[RobustnessRow]) -> list[str]:
    """Return a table of the accuracy on the worst class, by rule and attack. A mean over all
    classes would hide a class with samples on quarantined workers only."""
    texts = []
    for row in rows:
        words = []
        for cell in row.cells.values():
            worst = [each.worst_class or 0.0 for each in cell.outcomes]
            words.append(f"{100 * fmean(worst):.1f}" if cell.accuracies else text_of(cell))
        texts.append([f"`{row.rule}`", *words])
    attacks = [f"`{attack}`" for attack in table.attacks]
    return [
        "",
        "The lowest accuracy on any class, in percent, mean over the seeds:",
        "",
        *markdown_table(("rule", *attacks), texts),
    ]


def _lost(table: RobustnessTable, rows: Sequence[RobustnessRow]) -> list[str]:
    """Return one line for each rule and reason why rounds made no step. The line shows the attacks,
    each with its number of lost rounds."""
    lines = []
    for row in rows:
        under: dict[str, list[str]] = {}
        for attack, cell in row.cells.items():
            outcomes = cell.outcomes
            if lost := sum(each.skipped for each in outcomes):
                rounds = counted(len(outcomes) * table.settings()["rounds"], "round")
                trouble = next((each.trouble for each in outcomes if each.trouble), "")
                under.setdefault(trouble, []).append(f"`{attack}` ({lost} of {rounds})")
        lines += [
            f"- `{row.rule}` made no step under {', '.join(attacks)}: {why}."
            for why, attacks in under.items()
        ]
    return lines


def text_of(cell: RobustnessCell) -> str:
    if not cell.accuracies:
        return DASH if cell.why else NOT_RUN
    text = percent(cell.estimate)
    return {"fails": f"**fails** ({text})", "undecided": f"*undecided* ({text})"}.get(
        cell.verdict, text
    )


def percent(estimate: Estimate) -> str:
    """Return the mean in percent, with its standard error if there is more than one seed."""
    error = f" ± {100 * estimate.error:.1f}" if len(estimate.values) > 1 else ""
    return f"{100 * estimate.mean:.1f}{error}"


def _verdict(table: RobustnessTable, rows: Sequence[RobustnessRow]) -> list[str]:
    """Return a line with the rules that hold under all attacks, and a line with the number of cells
    that were not run yet."""
    cells = [cell for row in rows for cell in row.cells.values()]
    waiting = sum(text_of(cell) == NOT_RUN for cell in cells)
    holding = [
        f"`{row.rule}`"
        for row in rows
        if all(cell.verdict == "holds" for cell in row.cells.values())
    ]
    attacks = [attack for attack in table.attacks if attack != "none"] or ["none"]
    everything = f"all {len(attacks)} attacks" if len(attacks) > 1 else f"`{attacks[0]}`"
    if holding:
        lines = [f"- These rules hold under {everything}: {', '.join(holding)}."]
    elif waiting or any(cell.verdict == "undecided" for cell in cells):
        lines = [f"- No rule is known to hold under {everything}."]
    else:
        lines = [f"- No rule holds under {everything}."]
    if waiting:
        lines.append(f"- {NOT_RUN}: {counted(waiting, 'cell')} not run yet.")
    return lines


def draw_curves(table: RobustnessTable, path: Path) -> None:
    """Draw the test accuracy over the rounds: a panel for each attack with a line for each rule,
    the mean over the seeds with its standard error."""
    from matplotlib.figure import Figure

    columns = min(3, len(table.attacks))
    rows = -(-len(table.attacks) // columns)
    figure = Figure(figsize=(3.6 * columns + 1.8, 2.6 * rows + 0.4), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for attack, axes in zip(table.attacks, panels.flat, strict=False):
        axes.set_title(attack, fontsize=9)
        for number, rule in enumerate(table.rules):
            points = curve_of(table, rule, attack)
            if not points:
                continue
            rounds, estimates = zip(*points, strict=True)
            means = 100 * np.array([each.mean for each in estimates])
            wide = 100 * np.array(
                [each.error if len(each.values) > 1 else 0.0 for each in estimates]
            )
            style = ("-", "--", ":", "-.")[number // 10 % 4]
            color = f"C{number % 10}"
            axes.plot(rounds, means, style, label=rule, color=color, linewidth=1.2)
            axes.fill_between(
                rounds, means - wide, means + wide, color=color, alpha=0.2, linewidth=0
            )
    for unused in panels.flat[len(table.attacks) :]:
        unused.set_axis_off()
    lines = {
        label: line
        for axes in panels.flat
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(lines.values(), lines.keys(), loc="outside right upper", fontsize=7)
    figure.supxlabel("rounds", fontsize=9)
    figure.supylabel(f"test accuracy in %, {table.f} of {table.n} lie", fontsize=9)
    figure.savefig(path, dpi=110)


def curve_of(table: RobustnessTable, rule: str, attack: str) -> list[tuple[int, Estimate]]:
    """Return each tested round with the accuracy after it, estimated over the seeds that tested at
    that round."""
    values: dict[int, list[float]] = {}
    for outcome in table.results(rule, attack):
        for made, accuracy in outcome.curve:
            values.setdefault(made, []).append(accuracy)
    return [(made, Estimate(tuple(found_then))) for made, found_then in sorted(values.items())]


def draw(table: RobustnessTable, path: Path) -> None:
    """Draw the accuracy for each rule (a row) and attack (a column). Red is a low accuracy; grey is
    a cell without an accuracy."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rows = table.rows()
    values: list[list[Any]] = [
        [100 * cell.mean if cell.accuracies else float("nan") for cell in row.cells.values()]
        for row in rows
    ]
    size = (2.6 + 0.42 * len(table.attacks), 1.9 + 0.27 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    colours = mpl.colormaps["RdYlGn"].with_extremes(bad="0.85")
    best = 100 * table.reference().mean
    picture = axes.imshow(
        values, cmap=colours, vmin=10, vmax=max(best, 11), aspect="auto", alpha=0.75
    )
    axes.set_xticks(range(len(table.attacks)), table.attacks, rotation=60, ha="right", fontsize=8)
    axes.set_yticks(range(len(rows)), [row.rule for row in rows], fontsize=8)
    for y, row in enumerate(rows):
        for x, cell in enumerate(row.cells.values()):
            words = f"{100 * cell.mean:.0f}" if cell.accuracies else text_of(cell)
            weight = "bold" if cell.verdict == "fails" else "normal"
            axes.text(x, y, words, ha="center", va="center", fontsize=7, fontweight=weight)
    axes.set_title(
        f"test accuracy in %, {table.f} of {table.n} lie (bold: fails; {best:.0f} without attack)",
        fontsize=9,
    )
    figure.colorbar(picture, ax=axes, shrink=0.6)
    figure.savefig(path, dpi=110)
