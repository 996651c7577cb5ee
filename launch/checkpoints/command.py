"""``gossip checkpoints``: lists the checkpoints of a run, verifies them, and copies a model out."""

from __future__ import annotations

import datetime
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gossip.errors import ConfigError
from gossip.launch.optional import group_with_default
from gossip.launch.report import words
from gossip.run import real, shown

if TYPE_CHECKING:
    from rich.table import Table

WHERE_HELP = "Folder of a run, its name under runs/, or a folder of checkpoints; @STEP selects one."


app = typer.Typer(
    cls=group_with_default("list"),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help=(
        "List the checkpoints of a run or a folder, or copy the model out of one: "
        "gossip checkpoints RUN --verify"
    ),
)


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """Checkpoint in the output of ``gossip checkpoints``.

    Attributes:
        problems: One line about each damaged file.
        stage: Stage of the pipeline that saved the checkpoint; None without a pipeline.
    """

    step: int
    path: Path
    wall_time_s: float | None
    nbytes: int | None
    problems: tuple[str, ...]
    verified: bool
    stage: int | None = None

    @property
    def state(self) -> str:
        return "damaged" if self.problems else "intact" if self.verified else "complete"

    def to_json(self) -> dict[str, Any]:
        return {
            **({} if self.stage is None else {"stage": self.stage}),
            "step": self.step,
            "path": str(self.path),
            "wall_time_s": self.wall_time_s,
            "bytes": self.nbytes,
            "state": self.state,
            "problems": list(self.problems),
        }


@app.command("list")
def list_(
    where: Annotated[
        str, typer.Argument(metavar="RUN|FOLDER", help=WHERE_HELP, show_default=False)
    ],
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Read all files; the exit code is 1 if a file is damaged."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the checkpoints of a run or a folder: step, time, size and damage."""
    from gossip.run import checkpoints

    folder, step = checkpoints.resolve(where)
    stages = checkpoints.stage_folders(folder)
    places: list[tuple[int | None, Path]] = [*stages.items()] or [(None, folder)]
    found = [
        replace(inspect_checkpoint(each, path, verify), stage=stage)
        for stage, place in places
        for each, path in checkpoints.listed(place)
        if step in (None, each)
    ]
    if not found:
        raise ConfigError(f"there is no checkpoint {shown(where)}")
    if as_json:
        rows = [row.to_json() for row in found]
        print(json.dumps({"folder": str(folder), "checkpoints": rows}))
    else:
        _print(table(found))
    damaged = any(row.problems for row in found)
    raise typer.Exit(1 if verify and damaged else 0)


def inspect_checkpoint(step: int, path: Path, verify: bool) -> CheckpointRow:
    """Check the manifest and the file sizes of a checkpoint. If ``verify``, also check every
    byte."""
    from gossip.run import checkpoints

    try:
        found = checkpoints.open_at(path)
    except ConfigError as error:
        return CheckpointRow(step, path, None, None, (str(error),), verify)
    problems = tuple(checkpoints.verify(found)) if verify else ()
    wall_time_s = real(found.manifest.get("wall_time_s"))
    return CheckpointRow(step, path, wall_time_s, found.nbytes, problems, verify)


def table(rows: list[CheckpointRow]) -> Table:
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    staged = any(row.stage is not None for row in rows)
    if staged:
        made.add_column("stage", justify="right", no_wrap=True)
    for name in ("step", "time", "size"):
        made.add_column(name, justify="left" if name == "time" else "right", no_wrap=True)
    made.add_column("state", overflow="fold")
    for row in rows:
        made.add_row(
            *([str(row.stage)] if staged else []),
            str(row.step),
            _time(row.wall_time_s),
            "-" if row.nbytes is None else words.bytes_word(row.nbytes),
            Text("\n".join(row.problems) or row.state),
        )
    return made


def _time(wall_time_s: float | None) -> str:
    try:
        when = datetime.datetime.fromtimestamp(wall_time_s if wall_time_s is not None else -1e300)
    except (OverflowError, ValueError, OSError):
        return "-"
    return when.isoformat(sep=" ", timespec="seconds")


def _print(what: Table) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=4096)
    with console.capture() as told:
        console.print(what)
    print("\n".join([line.rstrip() for line in told.get().splitlines()]))


@app.command()
def export(
    where: Annotated[
        str,
        typer.Argument(metavar="FOLDER[@STEP]", help=WHERE_HELP, show_default=False),
    ],
    out: Annotated[
        Path, typer.Argument(help="A file, or a folder to put it into.", show_default=False)
    ],
) -> None:
    """Copy the model out of the newest complete checkpoint, or out of the one at @STEP. The file
    also contains the frozen base of the model, and the parameters of all stages of a pipeline."""
    from gossip.run import checkpoints, join_parts, stage_parts

    folder, step = checkpoints.resolve(where)
    place = out / checkpoints.MODEL_FILE if out.is_dir() else out
    stages, of = checkpoints.stage_folders(folder), ""
    if stages:
        found = [part.open() for part in stage_parts.newest_whole(folder, step)]
        of = f", from {len(found)} stages"
        lacking = f"no step in {shown(folder)} is complete in each of its stages"
    else:
        newest, damaged = checkpoints.newest_good(folder, step)
        for line in damaged:
            print(f"! {line}", file=sys.stderr)
        found = [] if newest is None else [newest]
        lacking = f"no checkpoint in {shown(folder)} is complete"
    if not found:
        listed = f" {shown(next(iter(stages.values())))}" if stages else ""
        raise ConfigError(lacking, f"gossip checkpoints{listed} --verify lists the damage")
    try:
        if not stages and found[0].model_files == [checkpoints.MODEL_FILE]:
            found[0].copy(checkpoints.MODEL_FILE, place)
        else:
            join_parts(found, place)
    except OSError as error:
        raise ConfigError(f"cannot write {shown(place)}: {error.strerror}") from error
    print(f"{shown(place)}: the model of step {found[0].step}{of}")
