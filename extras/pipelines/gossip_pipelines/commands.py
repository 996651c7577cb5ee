"""Commands of the ``gossip`` command line of this package."""

from __future__ import annotations

import typer

from .plan import command as plan


def add_to(app: typer.Typer) -> None:
    app.add_typer(plan.app, name="plan")
