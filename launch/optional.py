"""An option of a command that has no default of its own."""

from __future__ import annotations

from typing import Any

import typer


def optional(help: str, *names: str, **more: Any) -> Any:
    """Return an option without a default to show: its help says what happens without it.

    Args:
        more: What ``typer.Option`` takes besides.
    """
    return typer.Option(*names, help=help, show_default=False, **more)
