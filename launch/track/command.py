"""``gossip track``: hands a run on to a tracker, while it trains or afterwards, whoever has started
it."""

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
        typer.Option(metavar="TRACKER", help="One of those of --track."),
    ] = "tensorboard",
    runs: Annotated[Path, typer.Option("--dir", help="Where the runs' folders are.")] = Path(
        "runs"
    ),
) -> None:
    """Hand a run on to a tracker, until it is over: gossip track RUN --to mlflow"""
    from gossip.launch.report import find
    from gossip.run import check_trackers

    from .exporting import export

    check_trackers([to])
    folder = find(run, runs)
    try:
        given = export(to, folder, launched=False)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    print(f"{to}: {given} values of {folder} were handed on")
