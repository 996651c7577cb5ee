"""Commands of the ``gossip`` command line that come with this package."""

from __future__ import annotations

import typer

from .bench import command as bench
from .simulate import simulate


def add_to(app: typer.Typer) -> None:
    app.command()(simulate)
    app.add_typer(bench.app, name="bench")
