"""The ``gossip`` command. ``gossip.launch.cli:main`` is its entry point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .commands import app, main
else:
    __getattr__, __dir__ = lazy(__name__)
