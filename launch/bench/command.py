"""``gossip bench``: what rules cost, and what they are worth.
Each measurement is a module of its own."""

from __future__ import annotations

import typer

from .robustness import robustness
from .speed import aggregators

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure rules: their speed, and what they bear.",
)
app.command()(aggregators)
app.command()(robustness)
