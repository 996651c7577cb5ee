"""The tables of ``gossip bench robustness`` for other programs, as CSV, Parquet and LaTeX."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossip.errors import ConfigError
from gossip_lab.pages import write_text

from . import robustness_page

if TYPE_CHECKING:
    from .tables import RobustnessCell, RobustnessTable

OUTCOMES = (
    *("accuracy", "worst_class", "validation", "skipped", "honest_quarantined"),
    *("liars_quarantined", "refused", "trouble", "arithmetic"),
)
"""Fields of a trial's result. In a row they follow the settings of the trial."""
FRACTIONS = ("weight", "outlyingness", "trust_score", "loss")
"""Columns of a record that may be empty for all rounds of a run; Arrow then needs their type."""
SPECIAL = {
    "\\": r"\textbackslash{}",
    "_": r"\_",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def write_files(options: Mapping[str, Any], tables: Sequence[RobustnessTable]) -> None:
    """Write the files that the options ``csv``, ``latex`` and ``record`` name.

    Raises: ConfigError: One cannot be written.
    """
    if options["csv"] is not None:
        write_text(options["csv"], csv_of(tables))
    if options["latex"] is not None:
        write_text(options["latex"], latex_of(tables, options["data"]))
    if options["record"] is not None:
        write_records(options["record"], tables, options["into"], options["data"])


def csv_of(tables: Sequence[RobustnessTable]) -> str:
    """Return the finished runs as CSV with a header. The row of a run has its settings, its result,
    and its ``curve`` as ``round:accuracy`` pairs separated by blanks."""
    runs = {trial: outcome for table in tables for trial, outcome in table.runs()}
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    fields = dataclasses.fields(next(iter(runs)))
    settings = [field.name for field in fields if field.name != "record"]
    # ``validation`` is already the name of a setting.
    columns = ["validation_accuracy" if name == "validation" else name for name in OUTCOMES]
    lines.writerow([*settings, *columns, "curve"])
    for trial, outcome in runs.items():
        values: list[Any] = [getattr(trial, name) for name in settings]
        values[settings.index("declared_f")] = trial.tolerated
        curve = " ".join(f"{made}:{accuracy:.6g}" for made, accuracy in outcome.curve)
        lines.writerow([*values, *(getattr(outcome, name) for name in OUTCOMES), curve])
    return text.getvalue()


def write_records(path: Path, tables: Sequence[RobustnessTable], folder: Path, data: str) -> None:
    """Write a row for each worker and round of all runs, with the settings of the run.

    Args:
        path: The file; its name ends in ``.parquet`` or ``.csv``.
        folder: Store of the runs.

    Raises: ConfigError: It cannot be written.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv, parquet

    from .trial_store import recall_records, store_of

    types = {"float": pa.float64(), "str": pa.string(), "bool": pa.bool_()}
    open_file = parquet.ParquetWriter if path.suffix == ".parquet" else arrow_csv.CSVWriter
    trials = dict.fromkeys(trial for table in tables for trial, _ in table.runs())
    store = store_of(folder, data)
    writer: Any = None
    try:
        for trial in trials:
            if records := recall_records(store, trial):
                settings = {**dataclasses.asdict(trial), "declared_f": trial.tolerated}
                columns: dict[str, Any] = {
                    each.name: pa.array(
                        [settings[each.name]] * len(records["round"]),
                        types.get(str(each.type), pa.int64()),
                    )
                    for each in dataclasses.fields(trial)
                    if each.name != "record"
                }
                columns |= records
                columns |= {name: pa.array(records[name], pa.float64()) for name in FRACTIONS}
                table = pa.table(columns)
                writer = writer or open_file(path, table.schema)
                writer.write_table(table)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise ConfigError(f"there is nothing to write to {path}: no run has records")


def latex_of(tables: Sequence[RobustnessTable], data: str) -> str:
    """Return LaTeX with one ``table`` environment for each table, in the style of booktabs. Failing
    cells are bold, undecided cells are italic."""
    return "\n".join([r"% needs \usepackage{booktabs}", *(_latex(table, data) for table in tables)])


def _latex(table: RobustnessTable, data: str) -> str:
    searched = len(table.choices) > 1
    learnt = "".join(char if char.isalnum() else "-" for char in Path(data).stem)
    last = ["settings"] if searched else []
    head = " & ".join(["rule", "worst", *map(_word, table.attacks), *last])
    columns = f"l{'r' * (len(table.attacks) + 1)}{'l' * len(last)}"
    lines = [
        r"\begin{table}",
        rf"\caption{{{_caption(table, data)}}}",
        rf"\label{{tab:{learnt}-{robustness_page.kind_of(table)}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        rf"{head} \\",
        r"\midrule",
    ]
    for row in table.rows():
        worst = _cell(row.worst) if row.worst.accuracies else "--"
        words = [worst, *map(_cell, row.cells.values())]
        if searched:
            words.append(_plain(robustness_page.choice_text(table, row.rule)))
        lines.append(rf"{_word(row.rule)} & {' & '.join(words)} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _caption(table: RobustnessTable, data: str) -> str:
    """Return the caption: the measured quantity, the settings, and the limit below which a cell
    fails."""
    several = len(table.seeds) > 1
    measured = f"mean and standard error over {len(table.seeds)} seeds" if several else "one seed"
    settings = robustness_page.settings_of([table], data)
    said = [f"{_plain(name)} = {_plain(value)}" for name, value in settings.items()]
    said += [f"f = {table.f} of n = {table.n}, f = {table.declared_f} declared"]
    reference = _math(robustness_page.percent(table.reference()))
    limit = f"{100 * table.limit().mean:.1f}, {100 * table.fails_below:g} \\% of that"
    return (
        f"Test accuracy in percent, {measured}: {', '.join(said)}. Averaging without attack "
        f"reaches {reference}; the limit is {limit}. "
        "Bold: fails; italic: undecided; --: cannot be run."
    )


def _cell(cell: RobustnessCell) -> str:
    if not cell.accuracies:
        return "--" if cell.why else "?"
    text = _math(robustness_page.percent(cell.estimate))
    if cell.verdict == "fails":
        return rf"\textbf{{{text}}}"
    return rf"\textit{{{text}}}" if cell.verdict == "undecided" else text


def _math(text: str) -> str:
    return text.replace(" ± ", r" $\pm$ ")


def _word(text: str) -> str:
    return rf"\texttt{{{_plain(text)}}}"


def _plain(text: str) -> str:
    return "".join(SPECIAL.get(char, char) for char in text)
