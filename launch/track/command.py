"""``gossip track``: exports a run to a tracker, while the run trains or afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def track(
    run: Annotated[
        str, typer.Argument(help="Folder of the run, or its name under runs/.", show_default=False)
    ],
    to: Annotated[
        str,
        typer.Option(metavar="TRACKER", help="Tracker, as in gossip run --track."),
    ] = "tensorboard",
    runs: Annotated[Path, typer.Option("--dir", help="Folder with the runs' folders.")] = Path(
        "runs"
    ),
) -> None:
    """Export a run to a tracker, until the run is over: gossip track RUN --to mlflow"""
    from gossip.launch.report import find
    from gossip.run import check_trackers

    from .exporting import export

    check_trackers([to])
    folder = find(run, runs)
    try:
        given = export(to, folder, launched=False)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    print(f"{to}: {given} values of {folder} were exported")
