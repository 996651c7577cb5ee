"""``gossip report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    page.write(page.make(folder), out or folder / NAME)


COMMANDS = (report,)
