"""Commands that this package adds to the ``gossip`` command line."""

from __future__ import annotations

import typer

from .condor import condor
from .kubernetes import kubernetes


def add_to(app: typer.Typer) -> None:
    """Add the commands. All words after the script are arguments of the script."""
    for command in (kubernetes, condor):
        app.command(context_settings={"allow_interspersed_args": False})(command)
