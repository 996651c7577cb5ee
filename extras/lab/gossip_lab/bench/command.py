"""``gossip bench``: the cost of rules, and their robustness. Each measurement has a module of its
own."""

from __future__ import annotations

import typer

from .encodings import encodings
from .exchange import exchange, step
from .robustness import robustness
from .speed import aggregators

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure rules, exchanges and encodings: their speed, and the robustness of rules.",
)
app.command()(aggregators)
app.command()(robustness)
app.command()(encodings)
app.command()(exchange)
app.command()(step)
