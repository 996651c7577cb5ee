"""Commands of the ``gossip`` command line that come with this package."""

from __future__ import annotations

import typer

from .condor import condor
from .kubernetes import kubernetes


def add_to(app: typer.Typer) -> None:
    """Add commands whose options end where the script begins."""
    for command in (kubernetes, condor):
        app.command(context_settings={"allow_interspersed_args": False})(command)
