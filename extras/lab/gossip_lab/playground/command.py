"""``gossip play`` and ``gossip sweep``."""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from gossip.launch.optional import optional
from gossip.launch.report import bytes_word, counted, print_lines, words
from gossip_lab.pages import write_text
from gossip_lab.progress import ProgressBar

if TYPE_CHECKING:
    from .moments import Moment
    from .played import PlayedRun, Row
    from .sweeps import Sweep
    from .world import World

Into = Annotated[Path | None, optional("Write the world, its rows and a report to this folder.")]
Csv = Annotated[Path | None, optional("Write tidy rows here.")]
Parquet = Annotated[Path | None, optional("Write tidy rows here, as Parquet.")]
TABLE_ROWS = 20
REPORT = "report.html"
_FILE = re.compile(r"([^\s:,+]+\.py):")
"""Matches a user's file in the value of a field, such as mine.py in ``attack:mine.py:name:3``."""
HEAD = ("round", "time", "sent", "worst", "p10", "mean", "distance", "present", "quarantined")


class WorldCommand(TyperCommand):
    """Command with an option for each field of a world. The options are made when the command is
    used, because a world imports torch and the list of commands should not."""

    has_fields = False

    def get_params(self, ctx: Any) -> list[Any]:
        if not self.has_fields:
            app = typer.Typer(add_completion=False)
            app.command()(_with_fields(play))
            full = typer.main.get_command(app)
            self.params, self.callback, self.has_fields = full.params, full.callback, True
        return super().get_params(ctx)


def _with_fields(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with an option for each field of a world in place of its parameter
    ``fields``."""
    from .fields import fields_of
    from .world import World

    parameters = dict(inspect.signature(command, eval_str=True).parameters)
    own = parameters.pop("fields")
    fields = fields_of(World)
    for each in fields:
        default = " ".join(each.default) if each.is_list else str(each.default)
        text = each.help.replace("``", "")
        text += " Repeatable." if each.is_list else f" {default or 'Empty'} by default."
        kind: Any = list[each.kind] if each.is_list else each.kind  # type: ignore[name-defined]
        parameters[each.name] = own.replace(
            name=each.name, annotation=Annotated[kind | None, optional(text)], default=None
        )

    @functools.wraps(command)
    def called(**typed: Any) -> None:
        values = {each.name: typed.pop(each.name) for each in fields}
        command(**typed, fields={name: v for name, v in values.items() if v is not None})

    # typer reads ``__signature__``, but the type of a function does not declare it.
    setattr(called, "__signature__", inspect.Signature([*parameters.values()]))  # noqa: B010
    called.__annotations__ = {name: each.annotation for name, each in parameters.items()}
    return called


def play(
    world: Annotated[
        Path | None,
        typer.Argument(metavar="WORLD.TOML", help="Fields of the world.", show_default=False),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to play.")] = 100,
    every: Annotated[int, typer.Option(min=1, help="Rounds between two evaluations.")] = 10,
    into: Into = None,
    csv: Csv = None,
    parquet: Parquet = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else, to stdout.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only compare both engines, with the first 16 peers; exit 1 if they differ.",
        ),
    ] = False,
    fields: Annotated[Any, "options of their own"] = None,
) -> None:
    """Simulate the training of many peers on one machine, in virtual time: gossip play world.toml
    --peers 100"""
    from gossip.errors import ConfigError

    from .compare import PEERS_MAX as CHECKED_MAX
    from .played import Row
    from .tables import write_rows
    from .world import World

    described = World.from_toml(world) if world is not None else World()
    described = described.replace(**(fields or {}))
    described.check_mixing()
    if check:
        if into or csv or parquet or as_json:
            raise ConfigError(
                "--check writes no rows", "leave out --into, --csv, --parquet, --json"
            )
        with _errors_of_files(described):
            compared = described.check(rounds, CHECKED_MAX)
        print_lines([str(compared)])
        raise typer.Exit(0 if compared.first_difference is None else 1)
    files = _files(csv, parquet, into)
    with _errors_of_files(described):
        run, stopped = _play(described, rounds, every)
    for file in files:
        write_rows(file, Row._fields, run.rows)
    if into is not None:
        from .page import page_of_run

        write_text(into / "world.toml", described.to_toml())
        files.append(into / "world.toml")
        if _has_template_engine():
            page = page_of_run(described, run, described.build().task)
            write_text(into / REPORT, page)
            files.append(into / REPORT)
    if as_json:
        print(json.dumps(_as_data(described, rounds, run, stopped)))
    else:
        print_lines(_table(run))
    _print_written(files)
    if stopped:
        raise typer.Exit(130)


def _files(csv: Path | None, parquet: Path | None, into: Path | None) -> list[Path]:
    """Create the folder, check that the files of the rows can be written, and return these
    files."""
    from gossip.errors import ConfigError

    from .tables import check_file

    if parquet is not None and parquet.suffix != ".parquet":
        raise ConfigError(f"--parquet {parquet}", "its name ends in .parquet")
    if into is not None:
        try:
            into.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make the folder {into}: {error.strerror}") from error
    files = [csv, parquet, None if into is None else into / "rows.csv"]
    found = [file for file in files if file is not None]
    for file in found:
        check_file(file)
    return found


def _has_template_engine() -> bool:
    """Whether jinja2 is installed, which reports need. If it is not, print a note."""
    if find_spec("jinja2") is None:
        print_note("no report: it needs jinja2 (pip install 'gossip-train[report]')")
        return False
    return True


def print_note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print_written(files: Sequence[Path]) -> None:
    """Print the paths of the written files to stderr, and the URL of a report."""
    if files:
        print_note(f"written: {', '.join(map(str, files))}")
    for file in files:
        if file.name == REPORT:
            print_note(f"open the report in a browser: {file.resolve().as_uri()}")


def _play(world: World, rounds: int, every: int) -> tuple[PlayedRun, bool]:
    """Play the world. Return its rows, and whether Ctrl-C ended it before the last round."""
    from .played import PlayedRun

    rows: list[Row] = []
    began, done = time.monotonic(), 0

    def watch(moment: Moment) -> None:
        nonlocal done
        done = moment.rounds
        left_s = (time.monotonic() - began) / done * (rounds - done)
        means = [row.value for row in rows if row.metric == "mean"]
        accuracy = f", accuracy {means[-1]:.3f}" if means else ""
        at, left = words.lasted(moment.virtual_s), words.lasted(left_s)
        bar.update(done, f"virtual time {at}{accuracy}, {left} to go")

    try:
        with warnings.catch_warnings(record=True) as warned, ProgressBar(rounds, print_note) as bar:
            warnings.simplefilter("always", UserWarning)
            for found in world.evaluations(rounds, every, watch):
                rows += found
    except KeyboardInterrupt:
        print_note(f"interrupted after {done} of {counted(rounds, 'round')}: rows so far")
        return PlayedRun(tuple(rows)), True
    finally:
        for each in warned:
            print_note(f"warning: {each.message}")
    return PlayedRun(tuple(rows)), False


@contextmanager
def _errors_of_files(world: World) -> Iterator[None]:
    """Turn an exception that a user's file raised into a ConfigError with file and line.

    Raises: ConfigError: A user's topology, attack or model raised an exception.
    """
    from gossip.errors import ConfigError, GossipError

    try:
        yield
    except GossipError:
        raise
    except Exception as error:
        fields = (world.topology, world.model, world.aggregator, *world.faults)
        named = {Path(file).resolve() for text in fields for file in _FILE.findall(text)}
        places = [(at.filename, at.lineno) for at in traceback.extract_tb(error.__traceback__)]
        theirs = [place for place in places if Path(place[0]).resolve() in named]
        if not theirs:
            raise
        file, line = theirs[-1]
        raise ConfigError(f"{file}, line {line}: {type(error).__name__}: {error}") from error


def _evaluations(run: PlayedRun) -> list[dict[str, Any]]:
    """Return one mapping per evaluation, with its round, time, bytes and metrics."""
    found: dict[int, dict[str, Any]] = {}
    for row in run.rows:
        at = {"round": row.round, "virtual_s": row.virtual_s, "bytes": row.bytes}
        found.setdefault(row.round, at)[row.metric] = row.value
    return list(found.values())


def _table(run: PlayedRun) -> list[str]:
    """Return the lines of the table. A long run is shortened to equally spaced evaluations and the
    last evaluation."""
    from .tables import align

    found = _evaluations(run)
    each = math.ceil(len(found) / TABLE_ROWS) or 1
    rows = [
        (
            str(at["round"]),
            words.lasted(at["virtual_s"]),
            bytes_word(at["bytes"]),
            *(f"{at[name]:.4f}" for name in ("worst", "p10", "mean", "consensus_distance")),
            f"{at['present']:.0f}",
            f"{at['quarantined']:.2f}",
        )
        for at in found[::-1][::each][::-1]
    ]
    return align(HEAD, rows)


def _as_data(world: World, rounds: int, run: PlayedRun, stopped: bool) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "schema": "gossip.play/1",
        "world": asdict(world),
        "rounds": rounds,
        "interrupted": stopped,
        "evaluations": [_finite(at) for at in _evaluations(run)],
    }


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for JSON: numbers that are not finite become None."""
    return {
        name: v if not isinstance(v, float) or math.isfinite(v) else None
        for name, v in values.items()
    }


def sweep(
    grid: Annotated[
        Path,
        typer.Argument(
            metavar="GRID.TOML", help="A world, and values of its fields.", show_default=False
        ),
    ],
    jobs: Annotated[
        int, typer.Option("-j", "--jobs", min=1, help="Number of cells to play at once.")
    ] = 1,
    into: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs/sweep"),
    engine: Annotated[
        str, typer.Option(help="Engine that runs the cells: local, optuna, ray, dask or condor.")
    ] = "local",
    asha: Annotated[
        str | None,
        optional("Metric, such as mean, for early stopping of bad cells."),
    ] = None,
    csv: Csv = None,
    parquet: Parquet = None,
    show: Annotated[
        bool,
        typer.Option("--show", help="Play nothing; show the tables of the cells played so far."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the means as JSON, and nothing else, to stdout.")
    ] = False,
) -> None:
    """Play all cells of a grid of worlds. After Ctrl-C the same command continues: gossip sweep
    grid.toml -j 2"""
    from .engines import SweepSettings
    from .grids import Grid
    from .page import page_of_sweep
    from .sweeps import read_sweep, run_grid

    cells = Grid.from_toml(grid)
    files = _files(csv, parquet, into)
    settings = SweepSettings(into, jobs, asha or "")
    found = read_sweep(cells, settings) if show else run_grid(cells, settings, engine)
    for file in files:
        found.write_rows(file)
    if _has_template_engine():
        write_text(into / REPORT, page_of_sweep(found))
        files.append(into / REPORT)
    _print_sweep(found, as_json)
    _print_written(files)
    if found.errors:
        raise typer.Exit(1)


def _print_sweep(sweep: Sweep, as_json: bool) -> None:
    head, rows = sweep.table_cells()
    if as_json:
        cells: Sequence[Mapping[str, str]] = [dict(zip(head, row, strict=True)) for row in rows]
        data = {"missing": sweep.missing, "errors": sweep.errors, "warnings": sweep.warnings}
        print(json.dumps({"schema": "gossip.sweep/1", **data, "means": cells}))
    else:
        print_lines(sweep.table())
    if sweep.missing:
        total = counted(len(sweep.grid.cells), "cell")
        print_note(f"{sweep.missing} of {total} were not played to their end")
    if sweep.warnings:
        print_note(
            f"warning of {counted(len(sweep.warnings), 'cell')}, such as {sweep.warnings[0]}"
        )
    for error in sweep.errors:
        print_note(f"error: {error}")
