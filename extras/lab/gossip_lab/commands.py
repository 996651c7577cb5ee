"""Commands of the ``gossip`` command line of this package."""

from __future__ import annotations

import typer

from .bench import command as bench
from .playground import command as playground
from .simulate import simulate


def add_to(app: typer.Typer) -> None:
    app.command()(simulate)
    app.command(cls=playground.WorldCommand)(playground.play)
    app.command()(playground.sweep)
    app.add_typer(bench.app, name="bench")
