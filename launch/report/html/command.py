"""``gossip report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from .page import RunReport

Dir = Annotated[Path, typer.Option("--dir", help="Where the runs' folders are.")]
NAME = "report.html"


def report(
    run: Annotated[
        str, typer.Argument(help="Folder of the run, or its name under runs/.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The page's file; report.html in the run's folder by default."
        ),
    ] = None,
    runs_dir: Dir = Path("runs"),
) -> None:
    """Make one HTML file of a run: incidents, curves, members, trust, rounds: gossip report RUN"""
    from gossip.launch.report import run_state

    from . import page

    folder = run_state.find(run, runs_dir)
    _write(page.make(folder), out or folder / NAME)


def _write(made: RunReport, path: Path) -> None:
    """Write the page to a file, atomically."""
    import os
    import sys

    from gossip.errors import ConfigError
    from gossip.launch.report.words import counted
    from gossip.run import shown

    from . import page

    text = page.render(made)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with scratch.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise ConfigError(
            f"cannot write {shown(path)}: {error.strerror}", "--out names another file"
        ) from error
    incidents = counted(len(made.incidents), "incident")
    for line in made.run.broken:
        print(f"! {shown(line)}", file=sys.stderr)
    print(f"{shown(path)}: {len(text.encode()) / 1e6:.2f} MB, {incidents}")


COMMANDS = (report,)
