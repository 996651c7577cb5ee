"""The ``gossip`` command. ``gossip.launch.cli:main`` is its entry point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .commands import app, main

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import commands

    return getattr(commands, name)
