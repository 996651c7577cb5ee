"""Commands that this package adds to the ``gossip`` command line."""

from __future__ import annotations

import typer

from .plan import command as plan


def add_to(app: typer.Typer) -> None:
    app.add_typer(plan.app, name="plan")
