"""Commands of this package in the ``gossip`` command line."""

from __future__ import annotations

import typer

from .condor import condor
from .kubernetes import kubernetes


def add_to(app: typer.Typer) -> None:
    """Add the commands. They take no options after the script."""
    for command in (kubernetes, condor):
        app.command(context_settings={"allow_interspersed_args": False})(command)
