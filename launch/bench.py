"""``gossip bench``: what rules cost, and what they are worth. Each measurement is a module of its own."""

from __future__ import annotations

import typer

from .bench_aggregators import aggregators

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure rules: their speed.")
app.command()(aggregators)


@app.callback()
def _bench() -> None:
    """Makes a command of the group even when it is the only one."""
